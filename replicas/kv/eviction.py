"""Which free block loses its content next: the least recently used, where those that a second request has used count
as twice as recent.

In a chat a prompt that continued another one is more likely to be continued itself, and a prompt that came once may
never come again. So blocks are in two lists by recency, those that were found again apart from the others, and the two
ends are compared by age (in blocks taken since they became free). This resembles the segments of 2Q (Johnson and
Shasha, VLDB 1994), with a bound on how long anything is kept for its past. Every step is O(1).

A block is never evicted before those that follow it in a chain: whoever finds or frees a block has found or frees all
before it, so these are at least as recent and found as often, and the factor is at least 1.
"""

from __future__ import annotations

from collections.abc import Iterator

from replicas.kv.free_list import FreeList

FOUND_LIVES = 2  # how many times as long a block is kept once it was found again


class EvictionOrder:
    """The free blocks of a pool; at first all of them."""

    def __init__(self, num_blocks: int) -> None:
        self._new, self._found = FreeList(num_blocks), FreeList(num_blocks)
        for block_id in range(num_blocks):
            self._new.append(block_id)
        self._was_found = [False] * num_blocks
        self._freed_at = [0] * num_blocks
        self._taken = 0

    def __len__(self) -> int:
        return len(self._new) + len(self._found)

    def __iter__(self) -> Iterator[int]:
        yield from self._new
        yield from self._found

    def find(self, block_id: int) -> None:
        """A request uses the content that is in a block already."""
        self._was_found[block_id] = True

    def remove(self, block_id: int) -> None:
        """A free block is used again, with its content."""
        self._list_of(block_id).remove(block_id)

    def pop(self) -> int:
        """Take the block whose content is worth least. There must be one."""
        order = self._found if self._found_is_older() else self._new
        block_id = order.head
        order.remove(block_id)
        self._was_found[block_id] = False
        self._taken += 1
        return block_id

    def push(self, block_id: int) -> None:
        """A block with content became free."""
        self._freed_at[block_id] = self._taken
        self._list_of(block_id).append(block_id)

    def push_empty(self, block_id: int) -> None:
        """A block without content became free."""
        self._freed_at[block_id] = 0
        self._was_found[block_id] = False
        self._new.prepend(block_id)

    def _list_of(self, block_id: int) -> FreeList:
        return self._found if self._was_found[block_id] else self._new

    def _found_is_older(self) -> bool:
        if not self._new or not self._found:
            return not self._new
        new_age = self._taken - self._freed_at[self._new.head]
        return self._taken - self._freed_at[self._found.head] > FOUND_LIVES * new_age
