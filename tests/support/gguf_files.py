"""Writes GGUF files as converters do, with the `gguf` library's own names and writer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

ARCHES = {"llama": gguf.MODEL_ARCH.LLAMA, "qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3}


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    kind: str = "F32",
    metadata: dict[str, Any] | None = None,
    tensors: dict[str, np.ndarray | None] | None = None,
) -> Path:
    """Save a model with its matrices stored as `kind`. `metadata` overrides keys (None: left out; those that begin
    with a dot get the architecture in front), `tensors` overrides tensors (None: left out)."""
    arch = model.config.model_type
    writer = gguf.GGUFWriter(path, arch)
    for key, value in {**_metadata(model), **(metadata or {})}.items():
        if value is not None:
            _add(writer, arch + key if key.startswith(".") else key, value)
    names = gguf.get_tensor_name_map(ARCHES[arch], model.config.num_hidden_layers)
    arrays = {_stored_name(names, name): array for name, array in _arrays(model).items()}
    for name, array in {**arrays, **(tensors or {})}.items():
        if array is not None:
            _add_tensor(writer, name, array, GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _metadata(model: PreTrainedModel) -> dict[str, Any]:
    config = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return {
        ".block_count": config.num_hidden_layers,
        ".context_length": config.max_position_embeddings,
        ".embedding_length": config.hidden_size,
        ".feed_forward_length": config.intermediate_size,
        ".attention.head_count": config.num_attention_heads,
        ".attention.head_count_kv": config.num_key_value_heads,
        ".attention.key_length": head_dim,
        ".attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        ".rope.freq_base": float(config.rope_parameters["rope_theta"]),
        ".rope.dimension_count": head_dim,
        ".vocab_size": config.vocab_size,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    else:
        writer.add_uint32(key, value)


def _arrays(model: PreTrainedModel) -> dict[str, np.ndarray]:
    """The tensors as converters store them: Llama's query and key rows interleaved, a tied head left out."""
    config = model.config
    arrays = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    if config.tie_word_embeddings:
        del arrays["lm_head.weight"]
    if config.model_type != "llama":
        return arrays
    for name, array in arrays.items():
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
        if heads is not None:
            halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
            arrays[name] = halves.swapaxes(1, 2).reshape(array.shape)
    return arrays


def _stored_name(names: gguf.TensorNameMap, name: str) -> str:
    stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
    assert stored is not None, name
    return stored


def _add_tensor(writer: gguf.GGUFWriter, name: str, array: np.ndarray, kind: GGMLQuantizationType) -> None:
    if array.ndim == 1 or kind == GGMLQuantizationType.F32:
        writer.add_tensor(name, np.ascontiguousarray(array, dtype=np.float32))
    else:
        writer.add_tensor(name, gguf.quants.quantize(np.ascontiguousarray(array), kind), raw_dtype=kind)


def llama3_factors(inv_freq: torch.Tensor, scaled_inv_freq: torch.Tensor) -> np.ndarray:
    """What converters store as rope_freqs.weight: by how much each frequency is divided."""
    return (inv_freq / scaled_inv_freq).numpy()


def gguf_oracle(path: Path) -> PreTrainedModel:
    """The model that transformers makes of a GGUF file, in float32: its own reading of names, shapes and weights.
    (`from_pretrained(gguf_file=...)` does the same, but asks for the accelerate package.)"""
    config = LlamaConfig(**load_gguf_checkpoint(str(path))["config"])
    model = LlamaForCausalLM(config).float().eval()
    weights = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert (missing, unexpected) in (([], []), (["lm_head.weight"], []))
    model.tie_weights()
    return model
