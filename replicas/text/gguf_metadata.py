"""Reads the key-value part of a GGUF file and nothing else: no tensors, and fast on vocabularies of 100,000 strings.

The layout is that of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little-endian).
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


def read_gguf_metadata(path: Path) -> dict[str, Any]:
    """All metadata of the file, keyed as written. Raises ValueError that names the file if it is not a whole GGUF."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as buffer:
            return _Reader(buffer).metadata()
    except (struct.error, ValueError) as error:
        raise ValueError(f"{path} cannot be read as GGUF: {error}") from error


class _Reader:
    """A cursor over the file. A value that would end beyond the file raises struct.error or ValueError."""

    def __init__(self, buffer: mmap.mmap) -> None:
        self._buffer = buffer
        self._position = 0

    def metadata(self) -> dict[str, Any]:
        if self._take(len(_MAGIC)) != _MAGIC:
            raise ValueError("it does not start with the bytes 'GGUF'")
        version = self._number(_U32)
        if version not in _VERSIONS:
            raise ValueError(f"it has version {version}, but only versions 2 and 3 are known")
        self._number(_U64)  # the number of tensors
        values: dict[str, Any] = {}
        for _ in range(self._number(_U64)):
            key = self._string()
            values[key] = self._value(self._number(_U32))
        return values

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(self._number(_U32), self._number(_U64))
        return self._scalars(kind, 1)[0]

    def _array(self, kind: int, count: int) -> list[Any]:
        if kind == _STRING:
            return self._strings(count)
        if kind == _ARRAY:
            return [self._array(self._number(_U32), self._number(_U64)) for _ in range(count)]
        return list(self._scalars(kind, count))

    def _scalars(self, kind: int, count: int) -> tuple[Any, ...]:
        if kind not in _SCALARS:
            raise ValueError(f"it holds a value of the unknown type {kind}")
        width = struct.calcsize(f"<{_SCALARS[kind]}")
        return struct.unpack(f"<{count}{_SCALARS[kind]}", self._take(count * width))

    def _strings(self, count: int) -> list[str]:
        """Written out flat: this loop reads the vocabulary."""
        buffer, end, strings = self._buffer, self._position, []
        for _ in range(count):
            start = end + 8
            end = start + _U64.unpack_from(buffer, end)[0]
            strings.append(buffer[start:end].decode())
        if end > len(buffer):
            raise ValueError("it ends in the middle of its metadata")
        self._position = end
        return strings

    def _string(self) -> str:
        return self._take(self._number(_U64)).decode()

    def _number(self, layout: struct.Struct) -> int:
        number: int = layout.unpack_from(self._buffer, self._position)[0]
        self._position += layout.size
        return number

    def _take(self, length: int) -> bytes:
        end = self._position + length
        if end > len(self._buffer):
            raise ValueError("it ends in the middle of its metadata")
        taken = self._buffer[self._position : end]
        self._position = end
        return taken
