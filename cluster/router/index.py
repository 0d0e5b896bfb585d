"""The prefix index: which replica holds which KV blocks, and how long a prefix of a prompt each of them has.

Keys are chained (`replicas.kv.prefix`), so salt, model and adapter are in every key, and a replica that holds a block
holds, as a rule, all blocks before it: the holders only become fewer along a chain. `match` therefore searches the
chain for the places where they do, and skips what lies between two blocks with equal holders. Each block also
says how far its holders reached when they were last stored together: where nothing was removed, they end there.

One thread. The memory is bounded: 24 to 48 bytes a block (16 a slot, of which a third to two thirds are taken), at most
one set of holders for eight blocks, the least recently used out. What is lost that way is credit that a replica
deserved; none is ever given that it does not deserve.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from cluster.router.block_table import NOTE, BlockTable
from cluster.router.holder_sets import NOBODY, HolderSets

# A block's note: the name of the set of its holders, and above that how many blocks followed that had the same.
NAME_BITS = REACH_BITS = 24
NAME = MAX_REACH = (1 << NAME_BITS) - 1

BLOCKS_PER_SET = 8  # at most one set of several holders for so many blocks
MAX_SETS = NAME // 2
MAX_WAITING = 64  # matches whose blocks wait to be marked as used,
MARKED_AT_ONCE = 256  # so many with each store,
FRESH = 32  # and only if as many blocks as 32/1024 of the capacity were used since they were

# Numbers of blocks, growing, each with the set of those who have so many or more, shrinking.
Steps = list[tuple[int, int]]


class PrefixIndex:
    """Holds at most `max_blocks` blocks, and the holders of each."""

    def __init__(self, max_blocks: int) -> None:
        if max_blocks < 1:
            raise ValueError(f"max_blocks is {max_blocks}; an index needs room for at least one block")
        self._max_blocks = max_blocks
        self._table = BlockTable(max_blocks)
        self._sets = HolderSets(min(max_blocks // BLOCKS_PER_SET, MAX_SETS))
        self._bits: dict[str, int] = {}
        self._holders: list[str] = []
        self._free_places: list[int] = []
        self._used: deque[tuple[Sequence[bytes], int]] = deque()

    def __len__(self) -> int:
        return len(self._table)

    @property
    def num_sets(self) -> int:
        """Different sets of holders that blocks have."""
        return len(self._sets)

    def reserve(self, num_blocks: int) -> None:
        """So many blocks are to be expected. The table would grow to them by itself, with a pause at each doubling."""
        self._table.reserve(min(num_blocks, self._max_blocks))

    def add_holder(self, holder: str) -> None:
        """A replica's engine has started: it holds nothing, whatever one of the same name held before."""
        self.forget(holder)
        if not self._free_places:
            self._free_places.append(len(self._holders))
            self._holders.append("")
        place = self._free_places.pop()
        self._holders[place] = holder
        self._bits[holder] = 1 << place

    def forget(self, holder: str) -> None:
        """A replica is gone. Costs as much as there are sets of holders; the blocks leave when their time comes."""
        if bit := self._bits.pop(holder, 0):
            self._sets.forget(bit)
            self._free_places.append(bit.bit_length() - 1)

    def store(self, holder: str, keys: Sequence[bytes]) -> None:
        """`holder` now has these blocks, in the order of their chain. Nothing is noted of a holder that is not known:
        its events may come after it has left."""
        self._mark_used()
        if not (bit := self._bits.get(holder)):
            return
        most = max(1, self._max_blocks // 8)
        for end in range(len(keys), 0, -most):  # the beginning last: it is to go last
            self._store_run(bit, keys[max(0, end - most) : end])

    def _store_run(self, bit: int, keys: Sequence[bytes]) -> None:
        for note in self._table.make_room(len(keys)):
            self._sets.move(note & NAME, NOBODY)
        time = self._table.use(len(keys))
        cells, sets = self._table.cells, self._sets
        claimed = dict.fromkeys(self._table.claim(keys))  # each once
        names = [cells[cell] & NAME for cell in claimed]
        joined = {name: sets.move(name, sets.masks[name] | bit, count) for name, count in Counter(names).items()}
        behind, reach = NOBODY, 0
        for cell, name in zip(reversed(claimed), reversed(names), strict=True):
            holders = joined[name]
            reach = min(reach + 1, MAX_REACH) if holders == behind else 0
            cells[cell] = holders | reach << NAME_BITS | time
            behind = holders

    def remove(self, holder: str, keys: Sequence[bytes]) -> None:
        """`holder` has these blocks no more."""
        if not (bit := self._bits.get(holder)):
            return
        table, cells, sets = self._table, self._table.cells, self._sets
        for key in keys:
            cell = table.find(key)
            name = cells[cell + 1] & NAME
            if not sets.masks[name] & bit:
                continue
            left = sets.move(name, sets.masks[name] ^ bit)
            if left == NOBODY:
                table.delete(cell)
            else:
                cells[cell + 1] += left - name

    def match(self, keys: Sequence[bytes]) -> dict[str, int]:
        """How many blocks of the prefix each holder has; who has none is left out.

        Exact for a holder that has all blocks before each that it has. One with gaps is credited with at least what a
        walk would find and at most with all up to the last block that it has, which it was then seen to have.
        """
        steps = self._steps(keys)
        if not steps:
            return {}
        self._use(keys, steps[-1][0])
        few_leave_at_once = steps[0][1].bit_count() <= 8 * len(steps)
        return self._one_by_one(steps) if few_leave_at_once else self._all_together(steps)

    def _one_by_one(self, steps: Steps) -> dict[str, int]:
        depths = {}
        for (depth, holders), (_, staying) in pairwise([*steps, (0, 0)]):
            leaving = holders ^ staying
            while leaving:
                bit = leaving & -leaving
                depths[self._holders[bit.bit_length() - 1]] = depth
                leaving ^= bit
        return depths

    def _all_together(self, steps: Steps) -> dict[str, int]:
        width = len(self._holders) // 8 + 1
        raw = b"".join([holders.to_bytes(width, "little") for _, holders in steps])
        bits = np.unpackbits(np.frombuffer(raw, np.uint8).reshape(len(steps), -1), axis=1, bitorder="little")
        levels = np.add.reduce(bits, axis=0, dtype=np.uint32)
        places = levels.nonzero()[0]
        depths, names = [0, *(depth for depth, _ in steps)], self._holders
        return {names[i]: depths[level] for i, level in zip(places.tolist(), levels[places].tolist(), strict=True)}

    def _steps(self, keys: Sequence[bytes]) -> Steps:
        """Where holders end, from the front. No key is read twice.

        Bisects, and tries first whether holders still end where they did. If so, two or three reads tell each place;
        if not, it takes at most twice as many as without, which are k·log2(n/k) for k places in n keys.
        """
        if not keys:
            return []
        find, cells, masks = self._table.find, self._table.cells, self._sets.masks
        depth, here = 1, cells[find(keys[0]) + 1]
        steps: Steps = []
        holders, guessing = masks[here & NAME], True
        ahead = [(len(keys) + 1, 0)]
        while holders:
            end, there = ahead[-1]
            if end - depth > 1 and (here ^ there) & NAME:
                reach = here >> NAME_BITS & MAX_REACH
                guess = depth + (reach or 1)
                guessing = guessing and guess < end
                middle = guess if guessing else (depth + end) >> 1
                there = cells[find(keys[middle - 1]) + 1]
                guessing = not guessing or (reach > 0 and not (here ^ there) & NAME)
                ahead.append((middle, there))
                continue
            left = holders & masks[there & NAME]
            if left != holders:
                steps.append((depth, holders))
                holders, guessing = left, True
            depth, here = end, there
            ahead.pop()
        return steps

    def _use(self, keys: Sequence[bytes], depth: int) -> None:
        """Have these blocks marked as used, if room is becoming scarce and it is a while since they were. Where many
        wait, this prompt is left out: to let go of an earlier one's keys would take longer than the search."""
        if len(self._used) == MAX_WAITING or 2 * len(self._table) <= self._max_blocks:
            return
        if self._table.age(keys[depth - 1]) > FRESH:
            self._used.append((keys, depth))

    def _mark_used(self) -> None:
        """Mark a few of them: nothing waits for this."""
        if not self._used:
            return
        keys, end = self._used.popleft()
        start = max(0, end - MARKED_AT_ONCE)
        if start:
            self._used.appendleft((keys, start))
        cells, time = self._table.cells, self._table.use(end - start)
        for key in keys[start:end]:
            cell = self._table.find(key) + 1
            if note := cells[cell] & NOTE:
                cells[cell] = note | time
