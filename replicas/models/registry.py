"""From an architecture's name to the code that computes it."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from parallel.mesh import Mesh
from replicas.config import ModelConfig
from replicas.layers.compute import TORCH, Compute
from replicas.models.llama import CausalLM

MODELS = {
    "LlamaForCausalLM": CausalLM,
    "MistralForCausalLM": CausalLM,
    "Qwen2ForCausalLM": CausalLM,
    "Qwen3ForCausalLM": CausalLM,
}
# The names that GGUF files give them. Mistral calls itself llama there.
GGUF_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def require_known(architecture: object, known: Iterable[str]) -> str:
    """The architecture's name, if it is one of those; ValueError with the list if not."""
    if not isinstance(architecture, str) or architecture not in known:
        raise ValueError(f"architecture {architecture} is not supported; known ones are {', '.join(known)}")
    return architecture


def build_model(
    config: ModelConfig, mesh: Mesh, dtype: torch.dtype, device: torch.device, compute: Compute = TORCH
) -> CausalLM:
    """The model with its memory allocated, and nothing read yet."""
    model_class = MODELS[require_known(config.architecture, MODELS)]
    return model_class(config, mesh, dtype, device, compute).eval()
