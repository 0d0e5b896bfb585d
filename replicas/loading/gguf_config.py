"""From a GGUF file's metadata to a `ModelConfig`."""

from __future__ import annotations

from replicas.config import Dtype, ModelConfig, RopeScaling
from replicas.layers.rope import stretched_length
from replicas.loading.errors import CheckpointError
from replicas.loading.fields import Fields
from replicas.loading.gguf_file import GgufFile
from replicas.models.registry import GGUF_ARCHITECTURES, require_known

_ROPE_SCALING_KEYS = frozenset(
    f"rope.scaling.{key}"
    for key in ("type", "factor", "original_context_length", "finetuned", "yarn_beta_fast", "yarn_beta_slow")
)
_PLAIN_DTYPES: dict[str, Dtype] = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def gguf_model_config(file: GgufFile, rope_freq_factors: tuple[float, ...]) -> ModelConfig:
    try:
        prefix = require_known(file.metadata.get("general.architecture"), GGUF_ARCHITECTURES)
    except ValueError as error:
        raise CheckpointError(f"{file.path}: {error}") from None
    _refuse_split(file)
    metadata = Fields(file.path, file.metadata, f"{prefix}.")
    hidden_size, num_heads = metadata.integer("embedding_length"), metadata.integer("attention.head_count")
    num_layers = metadata.num_layers("block_count")
    head_dim = metadata.integer("attention.key_length", hidden_size // num_heads)
    rotated = metadata.integer("rope.dimension_count", head_dim)
    if rotated != head_dim:
        raise metadata.error("rope.dimension_count", f"only whole heads ({head_dim}) can be rotated")
    trained = metadata.integer("context_length")
    scaling = _rope_scaling(file, metadata, trained)
    return ModelConfig(
        architecture=GGUF_ARCHITECTURES[prefix],
        vocab_size=_vocab_size(file, metadata),
        hidden_size=hidden_size,
        intermediate_size=metadata.integer("feed_forward_length"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=metadata.integer("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        max_positions=stretched_length(scaling, trained),
        rms_norm_eps=metadata.number("attention.layer_norm_rms_epsilon"),
        rope_theta=metadata.number("rope.freq_base", 10_000.0),
        rope_scaling=scaling,
        tie_word_embeddings="output.weight" not in file.tensors,
        qkv_bias=prefix == "qwen2" or _has(file, "attn_q.bias"),
        o_bias=_has(file, "attn_output.bias"),
        mlp_bias=_has(file, "ffn_down.bias"),
        qk_norm=prefix == "qwen3",
        sliding_windows=(metadata.integer("attention.sliding_window", 0, minimum=0),) * num_layers,
        dtype=_dtype(file),
        bos_token_id=next(iter(_token_ids(file, "bos")), None),
        eos_token_ids=_token_ids(file, "eos", "eot"),
        rope_freq_factors=rope_freq_factors,
    )


def _refuse_split(file: GgufFile) -> None:
    parts = Fields(file.path, file.metadata).integer("split.count", 0, minimum=0)
    if parts > 1:
        raise CheckpointError(f"{file.path}: one of {parts} parts of a split model; merge them with llama-gguf-split")


def _has(file: GgufFile, suffix: str) -> bool:
    return any(name.endswith(f".{suffix}") for name in file.tensors)


def _rope_scaling(file: GgufFile, metadata: Fields, trained: int) -> RopeScaling | None:
    kind = metadata.get("rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise metadata.error("rope.scaling.type", "must be one of none, linear, yarn")
    for key in file.metadata:
        scaling_key = key.removeprefix(metadata.prefix)
        if scaling_key.startswith("rope.scaling.") and scaling_key not in _ROPE_SCALING_KEYS:
            raise metadata.error(scaling_key, "is not supported")
    original = metadata.integer("rope.scaling.original_context_length", trained)
    factor = metadata.number("rope.scaling.factor")
    if kind == "linear":
        return RopeScaling("linear", factor, original)
    beta_fast = metadata.number("rope.scaling.yarn_beta_fast", 32.0)
    beta_slow = metadata.number("rope.scaling.yarn_beta_slow", 1.0)
    return RopeScaling("yarn", factor, original, beta_fast=beta_fast, beta_slow=beta_slow)


def _dtype(file: GgufFile) -> Dtype:
    """What the embeddings are stored in; quantized ones are computed in bfloat16."""
    embeddings = file.tensors.get("token_embd.weight")
    return "bfloat16" if embeddings is None else _PLAIN_DTYPES.get(embeddings.kind.name, "bfloat16")


def _vocab_size(file: GgufFile, metadata: Fields) -> int:
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    return metadata.integer("vocab_size", len(tokens) if isinstance(tokens, list) else None)


def _token_ids(file: GgufFile, *names: str) -> tuple[int, ...]:
    """Those of the named roles that the file gives, each once."""
    tokenizer = Fields(file.path, file.metadata, "tokenizer.ggml.")
    given = [f"{name}_token_id" for name in names if tokenizer.get(f"{name}_token_id") is not None]
    return tuple(dict.fromkeys(tokenizer.integer(key, minimum=0) for key in given))
