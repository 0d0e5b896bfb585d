"""A hash table from the keys of KV blocks to small notes, in one flat array: no object per block.

Linear probing with deletion by moving entries back (Knuth, The Art of Computer Programming, 6.4, algorithm R), so
nothing is left behind by what went. The slots double as the entries do, up to the bound, if they were not reserved
before. A slot is 16 bytes: 64 bits of the key, of which all but the lowest count (keys are hashes themselves), and 64
bits of value: a note and the time of the last use.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from replicas.kv.prefix import KEY_BYTES

NOTE_BITS = 48
NOTE = (1 << NOTE_BITS) - 1
AGES = 1 << (64 - NOTE_BITS)
FIRST_BITS = 16  # of the number of slots
REGION_SLOTS = 4096  # looked through at once for the least recently used

_mark = Struct("<Q8x").unpack
_marks = Struct("<Q8x").iter_unpack


class BlockTable:
    """At most `max_blocks` entries. `cells` alternates marks (0: free) and values; a free slot's value is 0."""

    cells: memoryview[int]

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._max_bits = (max_blocks * 3 // 2).bit_length()  # at most two thirds full
        self._size = 0
        self._uses = 0
        self._hand = 0
        self._allocate(min(self._max_bits, FIRST_BITS))

    def __len__(self) -> int:
        return self._size

    def find(self, key: bytes) -> int:
        """The cell of the key's mark, or the free cell where it would be."""
        cells, shift, last = self.cells, self._shift, self._last
        mark: int = _mark(key)[0] | 1
        cell = mark >> shift & last
        while (there := cells[cell]) != mark and there:
            cell = (cell + 2) & last
        return cell

    def claim(self, keys: Sequence[bytes]) -> list[int]:
        """The cells of the keys' values, made if need be. There must be room."""
        cells, shift, last = self.cells, self._shift, self._last
        claimed = []
        for (low,) in _marks(b"".join(keys)):
            mark = low | 1
            cell = mark >> shift & last
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
        cells, shift, last = self.cells, self._shift, self._last
        behind = cell
        while mark := cells[behind := (behind + 2) & last]:
            home = mark >> shift & last
            if (behind - home) & last >= (behind - cell) & last:
                cells[cell], cells[cell + 1] = mark, cells[behind + 1]
                cell = behind
        cells[cell] = cells[cell + 1] = 0
        self._size -= 1

    def reserve(self, num_blocks: int) -> None:
        """Have slots for so many entries, up to the bound. To do this early spares a pause later: memory that is not
        written yet costs nothing."""
        bits = self._bits
        while bits < self._max_bits and 3 * num_blocks > 2 << bits:
            bits += 1
        if bits > self._bits:
            self._grow(bits)

    def make_room(self, num_blocks: int) -> list[int]:
        """Grow, or delete the least recently used, until so many more fit: the notes of what is gone. Makes cells
        anew."""
        assert num_blocks <= self._max_blocks
        self.reserve(self._size + num_blocks)
        notes: list[int] = []
        while self._size + num_blocks > self._max_blocks:
            notes += self._thin_out()
        return notes

    def _allocate(self, bits: int) -> None:
        self._bits = bits
        self._slots = np.zeros((1 << bits, 2), np.uint64)
        self.cells = self._slots.reshape(-1).data
        self._shift = 63 - bits
        self._last = (2 << bits) - 2

    def _grow(self, bits: int) -> None:
        """More slots. The entries come in the order of the keys' first bits, and so nearly stay in it."""
        entries = self._slots[self._slots[:, 0] != 0]
        self._allocate(bits)
        order, places = _packed(self._homes(entries))
        entries, within = entries[order], places < len(self._slots)
        self._slots[places[within]] = entries[within]
        for mark, value in entries[~within].tolist():  # round to the front
            cell = self.find(mark.to_bytes(KEY_BYTES, "little"))
            self.cells[cell], self.cells[cell + 1] = mark, value

    def _thin_out(self) -> list[int]:
        """Delete the oldest eighth of the next region. Hashing makes every region a fair sample of the table."""
        region = self._next_region()
        entries = self._slots[region]
        entries = entries[entries[:, 0] != 0]
        if not len(entries):
            return []
        times = (entries[:, 1] >> np.uint64(NOTE_BITS)).astype(np.uint16)
        ages = np.uint16(self._now() % AGES) - times
        oldest = np.argsort(ages, kind="stable")[-(len(entries) // 8 + 1) :]
        notes: list[int] = (entries[oldest, 1] & np.uint64(NOTE)).tolist()
        self._refill(region, np.delete(entries, oldest, axis=0))
        self._size -= len(notes)
        return notes

    def _next_region(self) -> NDArray[np.int64]:
        """Consecutive slots, from a free one to before a free one, so that every entry's place is among them."""
        num_slots = len(self._slots)
        slots = (self._hand + np.arange(min(REGION_SLOTS, num_slots))) % num_slots
        self._hand = (self._hand + REGION_SLOTS) % num_slots
        free = np.flatnonzero(self._slots[slots, 0] == 0)
        if len(slots) == num_slots:
            return np.roll(slots, -free[0])
        return slots[free[0] : free[-1]] if len(free) else slots[:0]

    def _refill(self, region: NDArray[np.int64], entries: NDArray[np.uint64]) -> None:
        order, places = _packed((self._homes(entries) - region[0]) % len(self._slots))
        self._slots[region] = 0
        self._slots[region[places]] = entries[order]

    def _homes(self, entries: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The slots where the search for these begins."""
        return (entries[:, 0] >> np.uint64(64 - self._bits)).astype(np.int64)

    def _now(self) -> int:
        return self._uses * 1024 // self._max_blocks


def _packed(homes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """An order of the entries, and the places that they then get: each its home, or the next that is free."""
    order = np.argsort(homes, kind="stable")
    numbers = np.arange(len(order))
    return order, np.maximum.accumulate(homes[order] - numbers) + numbers
