"""The GGUF container: typed metadata and a table of tensors in front of the data.

Reads the head of a file in a fraction of a second, where the `gguf` library's reader takes seconds over a large
vocabulary. Knows nothing of models or torch. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from replicas.loading.errors import CheckpointError, require_file
from replicas.loading.fields import Fields

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """`shape` is row-major; the data are `num_bytes` from `offset` in the file."""

    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]


def read_gguf(path: Path) -> GgufFile:
    """Read and check everything in front of the tensor data, and that the data are all there."""
    require_file(path)
    with path.open("rb") as file:
        magic = file.read(len(_MAGIC))
        if magic != _MAGIC:
            raise CheckpointError(f"{path}: not a GGUF file (it starts with {magic!r})")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _read(path, data)
            except (struct.error, EOFError) as error:
                raise CheckpointError(f"{path}: the file ends within its own header; it is truncated") from error
            except UnicodeDecodeError as error:
                raise CheckpointError(f"{path}: the header holds a string that is not UTF-8") from error


class _Cursor:
    """Reads little-endian values one after the other."""

    def __init__(self, data: mmap.mmap, position: int) -> None:
        self._data = data
        self._size = len(data)
        self.position = position

    def scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self._data, self.position)
        self.position += struct.calcsize(code)
        return value

    def string(self) -> str:
        start = self.position + 8
        self.position = start + self.scalar("Q")
        self._check()
        return self._data[start : self.position].decode()

    def value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array(self.scalar("I"), self.scalar("Q"))
        raise CheckpointError(f"unknown type {kind}")

    def _array(self, kind: int, count: int) -> list[Any]:
        if kind == _STRING:
            return [self.string() for _ in range(count)]
        if kind not in _SCALARS:
            raise CheckpointError(f"array of unknown type {kind}")
        start = self.position
        self.position += count * struct.calcsize(_SCALARS[kind])
        self._check()
        return list(struct.unpack_from(f"<{count}{_SCALARS[kind]}", self._data, start))

    def _check(self) -> None:
        if self.position > self._size:
            raise EOFError


def _read(path: Path, data: mmap.mmap) -> GgufFile:
    cursor = _Cursor(data, len(_MAGIC))
    version = cursor.scalar("I")
    if version not in _VERSIONS:
        raise CheckpointError(
            f"{path}: GGUF version {version} is not supported; known ones are {_VERSIONS}, little-endian"
        )
    num_tensors, num_pairs = cursor.scalar("Q"), cursor.scalar("Q")
    metadata: dict[str, Any] = {}
    for _ in range(num_pairs):
        key = cursor.string()
        metadata[key] = _metadata_value(path, cursor, key)
    table = [_table_entry(path, cursor) for _ in range(num_tensors)]
    alignment = Fields(path, metadata).integer("general.alignment", _DEFAULT_ALIGNMENT)
    data_start = -(-cursor.position // alignment) * alignment
    tensors: dict[str, GgufTensor] = {}
    for name, shape, kind, offset in table:
        if name in tensors:
            raise CheckpointError(f"{path}: tensor {name} is listed twice")
        tensors[name] = _placed(path, name, shape, kind, data_start + offset)
        if tensors[name].offset + tensors[name].num_bytes > len(data):
            raise CheckpointError(f"{path}: truncated: tensor {name} ends beyond the end of the file")
    return GgufFile(path, metadata, tensors)


def _metadata_value(path: Path, cursor: _Cursor, key: str) -> Any:
    try:
        return cursor.value(cursor.scalar("I"))
    except CheckpointError as error:
        raise CheckpointError(f"{path}: metadata {key} is an {error}") from None


def _table_entry(path: Path, cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.string()
    num_dimensions = cursor.scalar("I")
    if num_dimensions > _MAX_DIMENSIONS:
        raise CheckpointError(f"{path}: tensor {name} has {num_dimensions} dimensions")
    shape = tuple(cursor.scalar("Q") for _ in range(num_dimensions))[::-1]
    return name, shape, cursor.scalar("I"), cursor.scalar("Q")


def _placed(path: Path, name: str, shape: tuple[int, ...], kind: int, offset: int) -> GgufTensor:
    try:
        quantization = GGMLQuantizationType(kind)
    except ValueError:
        raise CheckpointError(f"{path}: tensor {name} has the unknown quantization type {kind}") from None
    block_size, block_bytes = GGML_QUANT_SIZES[quantization]
    if not shape or shape[-1] % block_size:
        raise CheckpointError(
            f"{path}: tensor {name} of shape {shape} can't be {quantization.name}, whose blocks hold {block_size}"
        )
    return GgufTensor(shape, quantization, offset, math.prod(shape) // block_size * block_bytes)
