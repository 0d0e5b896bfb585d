"""What no placement can beat: the reuse of one cache as large as all replicas' together, or larger.

All three count prompt tokens found in whole blocks over all prompt tokens, and leave the last token of a prompt to be
computed, as the engine does. Answers are left out: none of them is asked for again in a trace.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, defaultdict, deque
from collections.abc import Container, Sequence
from dataclasses import dataclass

from deploy.simulate.load import Arrival

NEVER = 1 << 60


@dataclass(frozen=True, slots=True)
class Bounds:
    """`ideal_reuse` has no limit, `pooled_lru_reuse` and `belady_reuse` have the blocks of all replicas."""

    ideal_reuse: float
    pooled_lru_reuse: float
    belady_reuse: float


def bounds(arrivals: Sequence[Arrival], block_size: int, num_blocks: int) -> Bounds:
    return Bounds(
        _lru(arrivals, block_size, NEVER),
        _lru(arrivals, block_size, num_blocks),
        _belady(arrivals, block_size, num_blocks),
    )


def _lru(arrivals: Sequence[Arrival], block_size: int, num_blocks: int) -> float:
    cache: OrderedDict[bytes, None] = OrderedDict()
    found = 0
    for arrival in arrivals:
        found += _found(cache, arrival, block_size)
        for key in reversed(arrival.block_keys):
            cache[key] = None
            cache.move_to_end(key)
        while len(cache) > num_blocks:
            cache.popitem(last=False)
    return found / sum(arrival.num_tokens for arrival in arrivals)


def _belady(arrivals: Sequence[Arrival], block_size: int, num_blocks: int) -> float:
    """Evict what is asked for last (Belady, 1966), and of one prompt its end first."""
    uses: defaultdict[bytes, deque[int]] = defaultdict(deque)
    for turn, arrival in enumerate(arrivals):
        for key in arrival.block_keys:
            uses[key].append(turn)
    next_use: dict[bytes, int] = {}
    last_first: list[tuple[int, int, bytes]] = []
    found = 0
    for arrival in arrivals:
        found += _found(next_use, arrival, block_size)
        for depth, key in enumerate(arrival.block_keys):
            uses[key].popleft()
            next_use[key] = uses[key][0] if uses[key] else NEVER
            heapq.heappush(last_first, (-next_use[key], -depth, key))
        while len(next_use) > num_blocks:
            turn, _, key = heapq.heappop(last_first)
            if next_use.get(key) == -turn:
                del next_use[key]
    return found / sum(arrival.num_tokens for arrival in arrivals)


def _found(cache: Container[bytes], arrival: Arrival, block_size: int) -> int:
    """Tokens of the prompt that are in the cache."""
    blocks = 0
    for key in arrival.block_keys[: (arrival.num_tokens - 1) // block_size]:
        if key not in cache:
            break
        blocks += 1
    return blocks * block_size
