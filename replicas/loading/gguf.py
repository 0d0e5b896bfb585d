"""Loads GGUF files: finds each tensor under its Hugging Face name and dequantizes it on the way into the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from parallel.matrix import RowSink
from parallel.sharding import WeightSlot
from replicas.config import ModelConfig
from replicas.layers.quantized_matrix import QuantizedRows
from replicas.loading.errors import CheckpointError
from replicas.loading.gguf_blocks import holds_as_stored, stored_bits, stored_blocks
from replicas.loading.gguf_config import gguf_model_config
from replicas.loading.gguf_file import GgufFile, read_gguf

_READABLE = frozenset(
    GGMLQuantizationType[name]
    for name in ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
)
_PLAIN = frozenset(GGMLQuantizationType[name] for name in ("F32", "F16", "BF16"))
_ROPE_FREQS = "rope_freqs.weight"
_TOP_LEVEL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_IN_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# Rows are dequantized in pieces of about this many elements, which stay in the processor's cache.
_PIECE = 1 << 18


@dataclass(frozen=True, slots=True)
class GgufCheckpoint:
    """`_names` maps the model's names of the tensors to the file's; `_bytes` is the whole file."""

    path: Path
    config: ModelConfig
    shapes: Mapping[str, tuple[int, ...]]
    _file: GgufFile
    _names: Mapping[str, str]
    _bytes: np.ndarray[Any, np.dtype[np.uint8]]

    @classmethod
    def open(cls, path: Path) -> GgufCheckpoint:
        file = read_gguf(path)
        _refuse_unreadable(file)
        # Copy-on-write only because torch warns of arrays that it could not write to.
        stored = np.memmap(path, mode="c")
        config = gguf_model_config(file, _rope_freq_factors(file, stored))
        names = {_model_name(name): name for name in file.tensors if name != _ROPE_FREQS}
        shapes = {model_name: file.tensors[name].shape for model_name, name in names.items()}
        return cls(path, config, shapes, file, names, stored)

    def location(self, name: str) -> str:
        return f"{self.path}: tensor {self._names.get(name) or _file_name(name)}"

    def bits(self, name: str) -> int | None:
        kind = self._file.tensors[self._names[name]].kind
        return None if kind in _PLAIN else stored_bits(kind)

    def read_into(self, name: str, slot: WeightSlot) -> None:
        tensor = self._file.tensors[self._names[name]]
        rows = self._stored_rows(name, tensor.shape[0])
        columns = slice(0, tensor.shape[-1])
        if slot.shard is not None and slot.shard.dim == 0:
            rows = rows[slot.shard.start : slot.shard.stop]
        elif slot.shard is not None:
            columns = slice(slot.shard.start, slot.shard.stop)
        stored = self._bytes[tensor.offset : tensor.offset + tensor.num_bytes]
        if len(tensor.shape) == 1:
            assert isinstance(slot.target, torch.Tensor), "only matrices are anything else"
            slot.target.copy_(torch.from_numpy(_dequantized(stored, tensor.kind)[rows]))
            return
        stored = stored.reshape(tensor.shape[0], -1)
        step = max(1, _PIECE // tensor.shape[1])
        for start in range(0, len(rows), step):
            _hand_over(slot.target, start, stored[rows[start : start + step]], tensor.kind, columns)

    def _stored_rows(self, name: str, num_rows: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Where the file keeps each row. Converters interleave the two halves of every query and key head of the
        `llama` architecture, for a rotary embedding that turns neighbours instead of halves."""
        rows = np.arange(num_rows)
        if self.config.architecture != "LlamaForCausalLM" or not _is_query_or_key(name):
            return rows
        return rows.reshape(-1, self.config.head_dim // 2, 2).swapaxes(1, 2).reshape(-1)


def _hand_over(
    target: torch.Tensor | RowSink, first: int, stored: np.ndarray[Any, Any], kind: GGMLQuantizationType, columns: slice
) -> None:
    """Rows from `first` on, as the target takes them: in the file's own codes if it holds such, else dequantized."""
    if isinstance(target, QuantizedRows) and holds_as_stored(kind, target.matrix.bits):
        target.write_blocks(first, stored_blocks(stored, kind).columns(columns.start, columns.stop))
        return
    rows = torch.from_numpy(_dequantized(stored, kind)[:, columns])
    if isinstance(target, torch.Tensor):
        target[first : first + len(rows)].copy_(rows)
    else:
        target.write(first, rows)


def _is_query_or_key(name: str) -> bool:
    return ".q_proj." in name or ".k_proj." in name


def _dequantized(stored: np.ndarray[Any, Any], kind: GGMLQuantizationType) -> np.ndarray[Any, Any]:
    if kind == GGMLQuantizationType.F32:
        return stored.view(np.float32)
    if kind == GGMLQuantizationType.F16:
        return stored.view(np.float16)
    return dequantize(stored, kind)


def _refuse_unreadable(file: GgufFile) -> None:
    for name, tensor in file.tensors.items():
        if tensor.kind not in _READABLE:
            known = ", ".join(sorted(kind.name for kind in _READABLE))
            raise CheckpointError(
                f"{file.path}: tensor {name} is stored as {tensor.kind.name}, which is not supported; known are {known}"
            )


def _rope_freq_factors(file: GgufFile, stored: np.ndarray[Any, Any]) -> tuple[float, ...]:
    """Llama 3's rope scaling, which converters store as one divisor a frequency."""
    if _ROPE_FREQS not in file.tensors:
        return ()
    tensor = file.tensors[_ROPE_FREQS]
    factors = _dequantized(stored[tensor.offset : tensor.offset + tensor.num_bytes], tensor.kind)
    return tuple(factors.astype(float).tolist())


def _model_name(name: str) -> str:
    """The model's name of a tensor; one that is not known keeps its own."""
    stem, _, suffix = name.rpartition(".")
    if stem in _TOP_LEVEL:
        return f"{_TOP_LEVEL[stem]}.{suffix}"
    prefix, _, rest = stem.partition(".")
    block, _, part = rest.partition(".")
    if prefix != "blk" or part not in _IN_BLOCK:
        return name
    return f"model.layers.{block}.{_IN_BLOCK[part]}.{suffix}"


def _file_name(name: str) -> str:
    """The converse of `_model_name`."""
    stem, _, suffix = name.rpartition(".")
    for file_stem, model_stem in _TOP_LEVEL.items():
        if stem == model_stem:
            return f"{file_stem}.{suffix}"
    block, _, part = stem.removeprefix("model.layers.").partition(".")
    file_part = next(key for key, value in _IN_BLOCK.items() if value == part)
    return f"blk.{block}.{file_part}.{suffix}"
