"""What waits at the same time is computed together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import numpy as np

Sequences = Sequence[Sequence[int]]
Compute = Callable[[Sequences], np.ndarray]


@dataclass(frozen=True, slots=True)
class Item:
    """A sequence that came at `arrival`, by the batcher's clock."""

    token_ids: Sequence[int]
    arrival: float


@dataclass(frozen=True, slots=True)
class Done:
    """An item's vector, the size of the batch that it was computed in, and how long it waited for that to begin."""

    vector: np.ndarray
    batch_size: int
    wait: float


class Batcher:
    """The two sides of `serve.batch`: `embed` hands in items one by one through `join`, which is the decorated
    function, and that hands batches to `run`.

    `serve.batch` closes a batch when its window ends even if the one before is still being computed, so that under
    load small batches would line up. Therefore nobody joins while a batch is computed: whoever comes meanwhile waits
    here, and all that wait then go together.
    """

    def __init__(
        self, compute: Compute, join: Callable[[Item], Awaitable[Done]], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._compute = compute
        self._join = join
        self._clock = clock
        self._idle = asyncio.Event()
        self._idle.set()

    async def embed(self, sequences: Sequences) -> list[Done]:
        """In the sequences' order. A cancelled call takes those out that are not yet being computed."""
        return list(await asyncio.gather(*map(self._embed_one, sequences)))

    async def run(self, items: Sequence[Item]) -> list[Done]:
        started = self._clock()
        self._idle.clear()
        try:
            vectors = await asyncio.to_thread(self._compute, [item.token_ids for item in items])
        finally:
            self._idle.set()
        rows = zip(items, vectors, strict=True)
        return [Done(vector, len(items), started - item.arrival) for item, vector in rows]

    async def _embed_one(self, token_ids: Sequence[int]) -> Done:
        item = Item(token_ids, self._clock())
        await self._idle.wait()
        return await self._join(item)
