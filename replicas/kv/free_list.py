"""An intrusive doubly linked list over block ids: O(1) push, pop and removal without allocating anything."""

from __future__ import annotations

from collections.abc import Iterator


class FreeList:
    """Some of the block ids 0..num_blocks-1 in eviction order: the head is the next to be reused."""

    def __init__(self, num_blocks: int) -> None:
        self._end = num_blocks
        self._next = [num_blocks] * (num_blocks + 1)
        self._previous = [num_blocks] * (num_blocks + 1)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        block_id = self._next[self._end]
        while block_id != self._end:
            yield block_id
            block_id = self._next[block_id]

    @property
    def head(self) -> int:
        """The list must not be empty."""
        assert self._length, "an empty list has no head"
        return self._next[self._end]

    def remove(self, block_id: int) -> None:
        before, after = self._previous[block_id], self._next[block_id]
        self._next[before] = after
        self._previous[after] = before
        self._length -= 1

    def append(self, block_id: int) -> None:
        """Put at the tail: reused last."""
        self._insert(self._previous[self._end], block_id)

    def prepend(self, block_id: int) -> None:
        """Put at the head: reused next."""
        self._insert(self._end, block_id)

    def _insert(self, before: int, block_id: int) -> None:
        after = self._next[before]
        self._next[before], self._previous[block_id] = block_id, before
        self._next[block_id], self._previous[after] = after, block_id
        self._length += 1
