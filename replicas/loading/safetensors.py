"""Loads Hugging Face folders: one model.safetensors, or shards with an index that says which holds what.

Headers are read and checked here, so that a broken file is refused with the tensor's name before any data are
touched; the data are read by the `safetensors` library, which maps the files and reads only the slices asked for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from parallel.sharding import WeightSlot
from replicas.config import ModelConfig
from replicas.loading.errors import CheckpointError, require_file
from replicas.loading.hf_config import read_hf_config, read_json

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8}
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class SafetensorsCheckpoint:
    """`_files` maps each tensor to the file that holds it, `_readers` each file to its open reader."""

    path: Path
    config: ModelConfig
    shapes: Mapping[str, tuple[int, ...]]
    _files: Mapping[str, Path]
    _readers: Mapping[Path, Any]

    @classmethod
    def open(cls, folder: Path) -> SafetensorsCheckpoint:
        config = read_hf_config(folder)
        shapes: dict[str, tuple[int, ...]] = {}
        files: dict[str, Path] = {}
        for file, tensors in read_tables(folder).items():
            for name, shape in tensors.items():
                if not _ignorable(name, config):
                    shapes[name], files[name] = shape, file
        readers = {file: _reader(file) for file in sorted(set(files.values()))}
        return cls(folder, config, shapes, files, readers)

    def location(self, name: str) -> str:
        return f"{self._files.get(name, self.path)}: tensor {name}"

    def bits(self, name: str) -> int | None:
        return None

    def read_into(self, name: str, slot: WeightSlot) -> None:
        stored = self._readers[self._files[name]].get_slice(name)
        if slot.shard is None:
            part = stored[:]
        elif slot.shard.dim == 0:
            part = stored[slot.shard.start : slot.shard.stop]
        else:
            part = stored[:, slot.shard.start : slot.shard.stop]
        assert isinstance(part, torch.Tensor)
        if isinstance(slot.target, torch.Tensor):
            slot.target.copy_(part)
        else:
            slot.target.write(0, part)


def _reader(file: Path) -> Any:
    try:
        return safe_open(file, framework="pt")
    except SafetensorError as error:
        raise CheckpointError(f"{file}: {error}") from error


def _ignorable(name: str, config: ModelConfig) -> bool:
    """Tensors that checkpoints may hold and models do without: precomputed rotary frequencies, and the head of a
    tied model, whose embedding is used whatever the head says."""
    return name.endswith(".rotary_emb.inv_freq") or (config.tie_word_embeddings and name == "lm_head.weight")


def read_tables(folder: Path) -> dict[Path, dict[str, tuple[int, ...]]]:
    """Every file of the checkpoint with the shapes of its tensors."""
    if (folder / _SINGLE).exists():
        return {folder / _SINGLE: _read_table(folder / _SINGLE)}
    if not (folder / _INDEX).exists():
        raise CheckpointError(
            f"{folder}: holds neither {_SINGLE} nor {_INDEX}; other formats must be converted to safetensors"
        )
    weight_map = _read_index(folder / _INDEX)
    tables = {folder / shard: _read_table(folder / shard) for shard in sorted(set(weight_map.values()))}
    for name, shard in weight_map.items():
        if name not in tables[folder / shard]:
            raise CheckpointError(f"{folder / shard}: tensor {name} is missing, although {_INDEX} places it here")
    for file, tensors in tables.items():
        for name in tensors:
            if weight_map.get(name) != file.name:
                raise CheckpointError(f"{file}: tensor {name} is here, although {_INDEX} does not say so")
    return tables


def _read_index(path: Path) -> dict[str, str]:
    weight_map = read_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path}: weight_map must be an object from tensor names to shards")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise CheckpointError(f"{path}: weight_map places {name} in {shard!r}, which is not a file of this folder")
    return weight_map


def _read_table(path: Path) -> dict[str, tuple[int, ...]]:
    """The shapes in a safetensors header (https://github.com/huggingface/safetensors#format), and the assurance
    that the data are all there."""
    require_file(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        data_start = _LENGTH_BYTES + length
        if data_start > size:
            raise CheckpointError(f"{path}: truncated within its header, or not a safetensors file")
        try:
            header = json.loads(file.read(length))
        except ValueError as error:
            raise CheckpointError(f"{path}: its header is not valid JSON: {error}") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: its header is not a JSON object")
    header.pop("__metadata__", None)
    table = {name: _checked_shape(path, name, entry, size - data_start) for name, entry in header.items()}
    end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if data_start + end != size:
        raise CheckpointError(f"{path}: {size - data_start - end} bytes follow the last tensor")
    return table


def _checked_shape(path: Path, name: str, entry: Any, data_size: int) -> tuple[int, ...]:
    try:
        kind, shape, (start, stop) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        num_bytes = torch.Size(shape).numel() * _ITEM_BYTES.get(kind, 0)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: the header's entry for tensor {name} is malformed") from error
    if kind not in _ITEM_BYTES:
        raise CheckpointError(
            f"{path}: tensor {name} is stored as {kind}, which is not supported; known are {', '.join(_ITEM_BYTES)}"
        )
    if stop - start != num_bytes:
        raise CheckpointError(f"{path}: tensor {name} of shape {shape} takes {stop - start} bytes, not {num_bytes}")
    if stop > data_size:
        raise CheckpointError(f"{path}: truncated: tensor {name} ends beyond the end of the file")
    return shape
