"""Tiny checkpoints with random weights, one of each architecture, written by `transformers` itself."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers.decoders import ByteLevel
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from parallel.sharding import WeightSlot
from replicas.text.gguf_tokenizer import open_gguf_tokenizer
from replicas.text.tokenizer import Tokenizer
from tests.support.tokenizers import write_byte_level

VOCAB_SIZE = 131
MAX_POSITIONS = 512

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": MAX_POSITIONS,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

TINY_CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**_SIZES),
    "llama-gqa": LlamaConfig(**_SIZES, num_key_value_heads=2),
    "llama-tied": LlamaConfig(**_SIZES, num_key_value_heads=1, tie_word_embeddings=True),
    "llama-biased": LlamaConfig(**_SIZES, attention_bias=True, mlp_bias=True),
    "mistral-window": MistralConfig(**_SIZES, num_key_value_heads=2, sliding_window=20),
    "mistral-head-dim": MistralConfig(**_SIZES, num_key_value_heads=2, sliding_window=None, head_dim=16),
    "qwen2": Qwen2Config(**_SIZES, num_key_value_heads=2, tie_word_embeddings=True),
    "qwen2-mixed-windows": Qwen2Config(
        **_SIZES, num_key_value_heads=2, use_sliding_window=True, sliding_window=20, max_window_layers=1
    ),
    "qwen3": Qwen3Config(**_SIZES, num_key_value_heads=2, head_dim=32),
    "qwen3-biased-tied": Qwen3Config(
        **_SIZES, num_key_value_heads=2, head_dim=8, attention_bias=True, tie_word_embeddings=True
    ),
}


def tiny_model(config: PreTrainedConfig, seed: int = 0) -> PreTrainedModel:
    """A float32 model whose every parameter is random: biases and norms too, which are constant when fresh.
    Large weights make the logits sharp, so that a wrong mask or position shows."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            around = 1.0 if name.endswith("norm.weight") else 0.0
            parameter.copy_(around + 0.2 * torch.randn_like(parameter))
    return model


def write_tiny(folder: Path, config: PreTrainedConfig, seed: int = 0, max_shard_size: str = "50GB") -> PreTrainedModel:
    """Save such a model and return it, as the oracle."""
    model = tiny_model(config, seed)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    return model


def write_config(folder: Path, config: PreTrainedConfig, **changes: Any) -> Path:
    """Only the config.json, with keys changed (None: left out); returns its path."""
    config.save_pretrained(folder)
    path = folder / "config.json"
    values = {**json.loads(path.read_text()), "architectures": [ARCHITECTURES[config.model_type]], **changes}
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))
    return path


def scaled(rope_scaling: dict[str, Any] | None, max_positions: int = MAX_POSITIONS) -> LlamaConfig:
    """A tiny Llama whose rotary embedding is stretched."""
    sizes = {**_SIZES, "max_position_embeddings": max_positions}
    return LlamaConfig(**sizes, num_key_value_heads=2, rope_parameters={"rope_theta": 10_000.0, **(rope_scaling or {})})


def fill(slots: Iterable[tuple[str, WeightSlot]], weights: Mapping[str, torch.Tensor]) -> None:
    """Copy full tensors to where layers want them, each rank its slice, as the loader does."""
    for name, slot in slots:
        full = weights[name]
        assert tuple(full.shape) == slot.shape, name
        shard = slot.shard
        part = full if shard is None else full.narrow(shard.dim, shard.start, shard.stop - shard.start)
        if isinstance(slot.target, torch.Tensor):
            slot.target.copy_(part)
        else:
            slot.target.write(0, part)


def write_tiny_with_small_vocabulary(folder: Path) -> Path:
    """A tiny Llama whose steps cost next to nothing, with a tokenizer, as a folder that can be served."""
    write_byte_level(folder)
    vocabulary = Tokenizer.open(folder).vocab_size
    sizes = {**_SIZES, "vocab_size": vocabulary, "max_position_embeddings": 2048}
    write_tiny(folder, LlamaConfig(**sizes, num_key_value_heads=2, tie_word_embeddings=True))
    return folder


def write_tiny_with_tokenizer(folder: Path, gguf: Path, num_layers: int = 4) -> Path:
    """A tiny Llama with four heads and the tokenizer of a GGUF file, as a folder that can be served."""
    vocabulary = open_gguf_tokenizer(gguf)
    vocabulary.backend.decoder = ByteLevel()
    vocabulary.backend.save(str(folder / "tokenizer.json"))
    sizes = {**_SIZES, "vocab_size": len(vocabulary.token_bytes), "num_hidden_layers": num_layers}
    write_tiny(folder, LlamaConfig(**sizes, num_key_value_heads=2, tie_word_embeddings=True))
    return folder
