"""From an architecture's name to the code that computes it."""

from __future__ import annotations

import torch

from parallel.mesh import Mesh
from replicas.config import ModelConfig
from replicas.models.llama import CausalLM

MODELS = {
    "LlamaForCausalLM": CausalLM,
    "MistralForCausalLM": CausalLM,
    "Qwen2ForCausalLM": CausalLM,
    "Qwen3ForCausalLM": CausalLM,
}


def build_model(config: ModelConfig, mesh: Mesh, dtype: torch.dtype, device: torch.device) -> CausalLM:
    """The model with its memory allocated and uninitialised."""
    if config.architecture not in MODELS:
        raise ValueError(f"architecture {config.architecture} is not supported; known ones are {', '.join(MODELS)}")
    return MODELS[config.architecture](config, mesh, dtype, device).eval()
