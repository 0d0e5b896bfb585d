"""Proof that all ranks go the same way: ranks that draw different tokens would compute nonsense, or wait for ever.

With each plan rank 0 sends a mark of all the results it has collected so far; every rank that knows the tokens holds
its own against it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from replicas.ranks.links import NO_TOKEN


@dataclass(frozen=True, slots=True)
class Mark:
    """The number of steps and a checksum of their results."""

    steps: int = 0
    checksum: int = 0

    def after(self, results: Sequence[int | None]) -> Mark:
        """The mark when one more step is known."""
        numbers = [NO_TOKEN if token_id is None else token_id for token_id in results]
        data = struct.pack(f"<{len(numbers)}i", *numbers)
        return Mark(self.steps + 1, zlib.crc32(data, self.checksum))


_MARK = struct.Struct("<QI")


def encode_mark(mark: Mark) -> bytes:
    return _MARK.pack(mark.steps, mark.checksum)


def split_mark(message: bytes) -> tuple[Mark, bytes]:
    """A message's mark, and what follows it."""
    return Mark(*_MARK.unpack_from(message)), message[_MARK.size :]
