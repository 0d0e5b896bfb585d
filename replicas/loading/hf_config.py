"""From a Hugging Face folder's config.json (and generation_config.json) to a `ModelConfig`.

Keys that a file leaves out mean what they mean to `transformers`; both its spellings of rope scaling are read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from replicas.config import DTYPES, Dtype, ModelConfig, RopeScaling
from replicas.layers.rope import stretched_length
from replicas.loading.errors import CheckpointError, require_file
from replicas.loading.fields import Fields
from replicas.models.registry import MODELS, require_known

_DEFAULTS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {"max_position_embeddings": 2048, "bos_token_id": 1, "eos_token_id": 2},
    "MistralForCausalLM": {
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "Qwen2ForCausalLM": {
        "max_position_embeddings": 32768,
        "num_key_value_heads": 32,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
    "Qwen3ForCausalLM": {
        "max_position_embeddings": 32768,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
}
_ROPE_KINDS = ("default", "linear", "dynamic", "llama3", "yarn")
_UNSUPPORTED = ("quantization_config", "text_config")


def read_hf_config(folder: Path) -> ModelConfig:
    path = folder / "config.json"
    given = read_json(path)
    architecture = _architecture(path, given)
    fields = Fields(path, {**_DEFAULTS[architecture], **given})
    _refuse_unsupported(fields)
    hidden_size, num_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    num_layers = fields.num_layers("num_hidden_layers")
    scaling = _rope_scaling(fields)
    biased = architecture in ("LlamaForCausalLM", "Qwen3ForCausalLM") and fields.flag("attention_bias")
    return ModelConfig(
        architecture=architecture,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=_integer_or(fields, "num_key_value_heads", num_heads),
        head_dim=_integer_or(fields, "head_dim", hidden_size // num_heads),
        max_positions=stretched_length(scaling, fields.integer("max_position_embeddings")),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope_theta=_rope_fields(fields).number("rope_theta", fields.get("rope_theta", 10_000.0)),
        rope_scaling=scaling,
        tie_word_embeddings=fields.flag("tie_word_embeddings"),
        qkv_bias=biased or architecture == "Qwen2ForCausalLM",
        o_bias=biased,
        mlp_bias=architecture == "LlamaForCausalLM" and fields.flag("mlp_bias"),
        qk_norm=architecture == "Qwen3ForCausalLM",
        sliding_windows=_sliding_windows(architecture, fields, num_layers),
        dtype=_dtype(fields),
        bos_token_id=fields.get("bos_token_id"),
        eos_token_ids=_eos_token_ids(folder, fields),
    )


def read_json(path: Path) -> dict[str, Any]:
    require_file(path)
    try:
        values = json.loads(path.read_bytes())
    except ValueError as error:
        raise CheckpointError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path}: must hold a JSON object")
    return values


def _architecture(path: Path, given: dict[str, Any]) -> str:
    names = given.get("architectures")
    if not isinstance(names, list) or len(names) != 1:
        raise CheckpointError(f"{path}: architectures is {names!r}, but must name the model's one architecture")
    try:
        return require_known(names[0], MODELS)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from None


def _refuse_unsupported(fields: Fields) -> None:
    for key in _UNSUPPORTED:
        if fields.get(key) is not None:
            raise CheckpointError(f"{fields.path}: {key} is not supported")
    if fields.get("hidden_act", "silu") != "silu":
        raise fields.error("hidden_act", "only silu is supported")
    if fields.get("partial_rotary_factor", 1.0) != 1.0:
        raise fields.error("partial_rotary_factor", "only whole heads can be rotated")


def _integer_or(fields: Fields, key: str, default: int) -> int:
    return default if fields.get(key) is None else fields.integer(key)


def _rope_fields(fields: Fields) -> Fields:
    """`rope_parameters` is the spelling of transformers 5, `rope_scaling` the older one; the older one wins."""
    key = "rope_scaling" if fields.get("rope_scaling") else "rope_parameters"
    values = fields.get(key) or {}
    if not isinstance(values, dict) or any(isinstance(value, dict) for value in values.values()):
        raise fields.error(key, "must be one flat object; rope that differs between layers is not supported")
    return Fields(fields.path, {f"{key}.{name}": value for name, value in values.items()}, f"{key}.")


def _rope_scaling(fields: Fields) -> RopeScaling | None:
    rope = _rope_fields(fields)
    key = "rope_type" if rope.get("rope_type") is not None else "type"
    kind = rope.get(key, "default")
    if kind not in _ROPE_KINDS:
        raise rope.error(key, f"must be one of {', '.join(_ROPE_KINDS)}")
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise rope.error("partial_rotary_factor", "only whole heads can be rotated")
    if kind == "default":
        return None
    trained = fields.integer("max_position_embeddings")
    if kind == "linear":
        return RopeScaling("linear", rope.number("factor"), trained)
    if kind == "dynamic":
        return RopeScaling("dynamic", rope.number("factor"), trained)
    original = _integer_or(fields, "original_max_position_embeddings", 0) or rope.integer(
        "original_max_position_embeddings", trained
    )
    if kind == "llama3":
        low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
        return RopeScaling("llama3", rope.number("factor"), original, low_freq_factor=low, high_freq_factor=high)
    return _yarn_scaling(rope, trained, original)


def _yarn_scaling(rope: Fields, trained: int, original: int) -> RopeScaling:
    def optional(key: str) -> float | None:
        return None if rope.get(key) is None else rope.number(key)

    return RopeScaling(
        "yarn",
        optional("factor") or trained / original,
        original,
        beta_fast=optional("beta_fast") or 32.0,
        beta_slow=optional("beta_slow") or 1.0,
        attention_factor=optional("attention_factor"),
        mscale=optional("mscale"),
        mscale_all_dim=optional("mscale_all_dim"),
        truncate=rope.flag("truncate", True),
    )


def _sliding_windows(architecture: str, fields: Fields, num_layers: int) -> tuple[int, ...]:
    if architecture == "LlamaForCausalLM":
        return (0,) * num_layers
    if architecture == "MistralForCausalLM":
        return (_integer_or(fields, "sliding_window", 0),) * num_layers
    window = _integer_or(fields, "sliding_window", 0) if fields.flag("use_sliding_window") else 0
    kinds = fields.get("layer_types")
    if kinds is None:
        first = fields.integer("max_window_layers", minimum=0)
        return tuple(window if index >= first else 0 for index in range(num_layers))
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        raise fields.error("layer_types", f"must list the {num_layers} layers")
    if unknown := set(kinds) - {"full_attention", "sliding_attention"}:
        raise fields.error("layer_types", f"{', '.join(sorted(map(str, unknown)))} is not supported")
    if "sliding_attention" in kinds and not window:
        raise fields.error("layer_types", "sliding_attention needs use_sliding_window and sliding_window")
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)


def _dtype(fields: Fields) -> Dtype:
    key = "dtype" if fields.get("dtype") is not None else "torch_dtype"
    dtype = fields.get(key, "float32")
    if dtype not in DTYPES or dtype == "auto":
        raise fields.error(key, f"must be one of {', '.join(DTYPES[1:])}")
    return dtype  # type: ignore[no-any-return]  # narrowed by the test above


def _eos_token_ids(folder: Path, fields: Fields) -> tuple[int, ...]:
    """Those of both files: chat models often end a turn with a token that only generation_config.json names."""
    sources = [fields]
    generation = folder / "generation_config.json"
    if generation.exists():
        sources.append(Fields(generation, read_json(generation)))
    token_ids: dict[int, None] = {}
    for source in sources:
        value = source.get("eos_token_id")
        listed = value if isinstance(value, list) else [] if value is None else [value]
        if any(isinstance(token_id, bool) or not isinstance(token_id, int) for token_id in listed):
            raise source.error("eos_token_id", "must be a token id or a list of them")
        token_ids.update(dict.fromkeys(listed))
    return tuple(token_ids)
