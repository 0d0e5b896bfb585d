"""The pool of KV blocks: reference counts, and the map from keys to blocks.

The pool knows ids and keys, never tensors. A block is free (in the eviction order) or referenced, never both; a free
block may still hold content under a key, and a lookup brings it back. A full block never changes.
Paged KV caches were introduced by Kwon et al., "PagedAttention" (SOSP 2023).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from replicas.kv.eviction import EvictionOrder
from replicas.messages import KvEvent, KvRemoved, KvStored


class BlockPool:
    """`num_blocks` blocks, all free. Every change of what the keys name is recorded as an event."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = EvictionOrder(num_blocks)
        self._ref_counts = [0] * num_blocks
        self._key_of: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}
        self._events: list[KvEvent] = []

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now, cached content included."""
        return len(self._free)

    def match(self, keys: Sequence[bytes]) -> list[int]:
        """Ids of the blocks that hold the longest known prefix of `keys`. Takes no reference."""
        block_ids = []
        for key in keys:
            block_id = self._block_of.get(key)
            if block_id is None:
                break
            block_ids.append(block_id)
        return block_ids

    def num_unreferenced(self, block_ids: Iterable[int]) -> int:
        """How many of these blocks are free, so that acquiring them shrinks the free list."""
        return sum(self._ref_counts[block_id] == 0 for block_id in block_ids)

    def acquire(self, block_ids: Iterable[int]) -> None:
        """Take a reference to each block of a match."""
        for block_id in block_ids:
            if self._ref_counts[block_id] == 0:
                self._free.remove(block_id)
            self._free.find(block_id)
            self._ref_counts[block_id] += 1

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks of undefined content, evicting what is worth least. There must be enough."""
        assert count <= len(self._free), f"{count} blocks wanted, {len(self._free)} free"
        block_ids = [self._free.pop() for _ in range(count)]
        evicted = []
        for block_id in block_ids:
            self._ref_counts[block_id] = 1
            if (key := self._key_of[block_id]) is not None:
                evicted.append(key)
                del self._block_of[key]
                self._key_of[block_id] = None
        if evicted:
            self._events.append(KvRemoved(tuple(evicted)))
        return block_ids

    def release(self, block_ids: Sequence[int]) -> None:
        """Give back one reference to each block of a sequence. Its end becomes evictable before its beginning."""
        for block_id in reversed(block_ids):
            self._ref_counts[block_id] -= 1
            assert self._ref_counts[block_id] >= 0, f"block {block_id} was released twice"
            if self._ref_counts[block_id]:
                continue
            if self._key_of[block_id] is None:
                self._free.push_empty(block_id)
            else:
                self._free.push(block_id)

    def publish(self, block_ids: Sequence[int], keys: Sequence[bytes], parent: bytes) -> None:
        """Name consecutive full blocks, the first of which follows `parent`. A key that another block already
        holds is left with it, and this block stays private."""
        stored: list[bytes] = []
        for block_id, key in zip(block_ids, keys, strict=True):
            if key in self._block_of:
                self._record_stored(stored, parent)
                stored, parent = [], key
                continue
            self._block_of[key] = block_id
            self._key_of[block_id] = key
            stored.append(key)
        self._record_stored(stored, parent)

    def cached_keys(self) -> tuple[bytes, ...]:
        """The keys of all blocks that a match can find."""
        return tuple(self._block_of)

    def clear(self) -> None:
        """Forget all free cached content (for measurements, and after weights change)."""
        for block_id in list(self._free):
            if (key := self._key_of[block_id]) is not None:
                del self._block_of[key]
                self._key_of[block_id] = None
                self._events.append(KvRemoved((key,)))

    def drain_events(self) -> tuple[KvEvent, ...]:
        events, self._events = tuple(self._events), []
        return events

    def check_integrity(self, held: Iterable[int]) -> None:
        """Prove the pool against `held`, every reference that anybody holds (a block twice if held twice)."""
        counts = Counter(held)
        free = list(self._free)
        assert len(free) == len(set(free)) == len(self._free), "the free list repeats a block or miscounts"
        for block_id in range(self.num_blocks):
            assert self._ref_counts[block_id] == counts[block_id], (
                f"block {block_id} counts {self._ref_counts[block_id]} references, but {counts[block_id]} are held"
            )
        assert set(free) == {b for b in range(self.num_blocks) if not counts[b]}, "free list and references disagree"
        named = {key: block_id for block_id, key in enumerate(self._key_of) if key is not None}
        assert named == self._block_of, "key map and blocks disagree"

    def _record_stored(self, keys: list[bytes], parent: bytes) -> None:
        if keys:
            self._events.append(KvStored(tuple(keys), parent))
