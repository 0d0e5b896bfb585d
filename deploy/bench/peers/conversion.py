"""A GGUF file as a Hugging Face folder, for programs that read only those. Weights are dequantized, so both compute the
same model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers.decoders import ByteLevel

from deploy.errors import UserError
from parallel.sharding import WeightSlot
from replicas.config import ModelConfig
from replicas.loading.checkpoint import Checkpoint, open_checkpoint
from replicas.text.gguf_tokenizer import open_gguf_tokenizer
from replicas.text.vocabulary import Vocabulary


def convert(file: Path, folder: Path, dtype: torch.dtype = torch.bfloat16) -> Path:
    """Write the model of a byte-level Llama to `folder`. Raises UserError for any other."""
    checkpoint, vocabulary = open_checkpoint(file), open_gguf_tokenizer(file)
    if checkpoint.config.architecture != "LlamaForCausalLM" or vocabulary.strip_leading_space:
        raise UserError(f"{file} cannot be converted: only Llama models with a byte-level vocabulary can")
    folder.mkdir(parents=True, exist_ok=True)
    save_file(_weights(checkpoint, dtype), folder / "model.safetensors", metadata={"format": "pt"})
    _write_tokenizer(folder, vocabulary)
    _write(folder / "generation_config.json", _ends(checkpoint.config))
    _write(folder / "config.json", _config(checkpoint.config, dtype))  # last: it says that the folder is whole
    return folder


def _weights(checkpoint: Checkpoint, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    weights = {}
    for name, shape in checkpoint.shapes.items():
        weights[name] = torch.empty(shape, dtype=dtype)
        checkpoint.read_into(name, WeightSlot(weights[name], shape))
    return weights


def _config(model: ModelConfig, dtype: torch.dtype) -> dict[str, Any]:
    return {
        "architectures": [model.architecture],
        "model_type": "llama",
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": model.max_positions,
        "rms_norm_eps": model.rms_norm_eps,
        "rope_theta": model.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_theta},
        "tie_word_embeddings": model.tie_word_embeddings,
        "attention_bias": model.qkv_bias,
        "mlp_bias": model.mlp_bias,
        "dtype": str(dtype).removeprefix("torch."),
        **_ends(model),
    }


def _ends(model: ModelConfig) -> dict[str, Any]:
    return {"bos_token_id": model.bos_token_id, "eos_token_id": list(model.eos_token_ids)}


def _write_tokenizer(folder: Path, vocabulary: Vocabulary) -> None:
    vocabulary.backend.decoder = ByteLevel()
    vocabulary.backend.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": vocabulary.chat_template,
        "clean_up_tokenization_spaces": False,
        **vocabulary.special_tokens_map,
    }
    _write(folder / "tokenizer_config.json", settings)


def _write(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
