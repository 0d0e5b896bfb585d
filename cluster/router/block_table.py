"""A hash table from the keys of KV blocks to small notes, in one flat array: no object per block.

Linear probing with deletion by moving entries back (Knuth, The Art of Computer Programming, 6.4, algorithm R), so
nothing is left behind by what went, and nothing ever has to be rebuilt. A slot is 16 bytes: 64 bits of the key, of
which all but the lowest count (keys are hashes themselves), and 64 bits of value: a note and the time of the last use.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

import numpy as np

NOTE_BITS = 48
NOTE = (1 << NOTE_BITS) - 1
AGES = 1 << (64 - NOTE_BITS)
REGION_SLOTS = 4096  # looked through at once for the least recently used

_mark = Struct("<Q8x").unpack
_marks = Struct("<Q8x").iter_unpack


class BlockTable:
    """At most `max_blocks` entries. `cells` alternates marks (0: free) and values; a free slot's value is 0."""

    def __init__(self, max_blocks: int) -> None:
        num_slots = 1 << (max_blocks * 4 // 3).bit_length()  # at most three quarters full
        self._slots = np.zeros((num_slots, 2), np.uint64)
        self.cells: memoryview[int] = self._slots.reshape(-1).data
        self._last = 2 * num_slots - 2
        self._max_blocks = max_blocks
        self._size = 0
        self._uses = 0
        self._hand = 0

    def __len__(self) -> int:
        return self._size

    def find(self, key: bytes) -> int:
        """The cell of the key's mark, or the free cell where it would be."""
        cells, last = self.cells, self._last
        mark: int = _mark(key)[0] | 1
        cell = mark & last
        while (there := cells[cell]) != mark and there:
            cell = (cell + 2) & last
        return cell

    def claim(self, keys: Sequence[bytes]) -> list[int]:
        """The cells of the keys' values, made if need be. There must be room."""
        cells, last = self.cells, self._last
        claimed = []
        for (low,) in _marks(b"".join(keys)):
            mark = low | 1
            cell = mark & last
            while (there := cells[cell]) != mark:
                if not there:
                    cells[cell] = mark
                    self._size += 1
                    break
                cell = (cell + 2) & last
            claimed.append(cell + 1)
        return claimed

    def use(self, num_blocks: int) -> int:
        """So many blocks are being used: the time to put above their notes."""
        self._uses += num_blocks
        return (self._now() % AGES) << NOTE_BITS

    def age(self, key: bytes) -> int:
        """How many blocks were used since this one was, in 1024ths of the capacity."""
        return (self._now() - (self.cells[self.find(key) + 1] >> NOTE_BITS)) % AGES

    def delete(self, cell: int) -> None:
        """Free the slot of this mark, and let the entries behind it move up that would be found sooner there."""
        cells, last = self.cells, self._last
        behind = cell
        while mark := cells[behind := (behind + 2) & last]:
            home = mark & last
            if (behind - home) & last >= (behind - cell) & last:
                cells[cell], cells[cell + 1] = mark, cells[behind + 1]
                cell = behind
        cells[cell] = cells[cell + 1] = 0
        self._size -= 1

    def make_room(self, num_blocks: int) -> list[int]:
        """Delete the least recently used until so many more fit: the notes of what is gone."""
        assert num_blocks <= self._max_blocks
        notes: list[int] = []
        while self._size + num_blocks > self._max_blocks:
            notes += self._thin_out()
        return notes

    def _thin_out(self) -> list[int]:
        """Delete the oldest eighth of the next region. Hashing makes every region a fair sample of the table."""
        region = self._slots[self._hand : self._hand + REGION_SLOTS]
        self._hand = (self._hand + REGION_SLOTS) % len(self._slots)
        entries = region[region[:, 0] != 0]
        if not len(entries):
            return []
        ages = (np.uint64(self._now() % AGES) - (entries[:, 1] >> np.uint64(NOTE_BITS))) % np.uint64(AGES)
        oldest = np.argsort(ages, kind="stable")[-(len(entries) // 8 + 1) :]
        for mark in entries[oldest, 0].tolist():
            self.delete(self.find(mark.to_bytes(16, "little")))
        notes: list[int] = (entries[oldest, 1] & np.uint64(NOTE)).tolist()
        return notes

    def _now(self) -> int:
        return self._uses * 1024 // self._max_blocks
