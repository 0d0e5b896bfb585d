"""What waits at the same time is computed together, and everybody gets their own vector."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

from cluster.embedding.batcher import Batcher, Done, Item


class Window:
    """In place of serve.batch: closes a batch when the loop has nothing else to do, with at most three items."""

    def __init__(self) -> None:
        self.batcher: Batcher
        self._open: list[tuple[Item, asyncio.Future[Done]]] = []

    async def join(self, item: Item) -> Done:
        turn = asyncio.get_running_loop().create_future()
        self._open.append((item, turn))
        if len(self._open) == 1:
            self.task = asyncio.create_task(self._close())
        return await turn

    async def _close(self) -> None:
        await asyncio.sleep(0.001)
        batch, self._open = self._open[:3], self._open[3:]
        if self._open:
            self.more = asyncio.create_task(self._close())
        for (_, turn), done in zip(batch, await self.batcher.run([item for item, _ in batch]), strict=True):
            if not turn.cancelled():
                turn.set_result(done)


def batcher(compute) -> Batcher:
    window = Window()
    window.batcher = Batcher(compute, window.join)
    return window.batcher


def lengths(sequences):
    return np.array([[len(sequence)] for sequence in sequences], dtype=np.float32)


async def test_vectors_come_in_the_order_of_the_texts():
    done = await batcher(lengths).embed([[1], [1, 2], [1, 2, 3], [1] * 4])
    assert [each.vector[0] for each in done] == [1, 2, 3, 4]
    assert sorted(each.batch_size for each in done) == [1, 3, 3, 3]


async def test_who_comes_during_a_batch_goes_into_the_next_one_together():
    begun, go_on, sizes = threading.Event(), threading.Event(), []

    def compute(sequences):
        sizes.append(len(sequences))
        begun.set()
        go_on.wait(5)
        return lengths(sequences)

    work = batcher(compute)
    first = asyncio.create_task(work.embed([[1]]))
    await asyncio.to_thread(begun.wait, 5)
    late = []
    for _ in range(3):  # far apart: each would have a window of its own
        late.append(asyncio.create_task(work.embed([[1]])))
        await asyncio.sleep(0.01)
    go_on.set()
    await asyncio.gather(first, *late)
    assert sizes == [1, 3]
    assert late[0].result()[0].wait > 0.01


async def test_a_failed_batch_does_not_stop_the_next():
    def compute(sequences):
        if len(sequences[0]) == 1:
            raise MemoryError
        return lengths(sequences)

    work = Batcher(compute, lambda item: work.run([item]))
    with pytest.raises(MemoryError):
        await work.embed([[1]])
    assert (await work.run([Item([1, 2], 0.0)]))[0].batch_size == 1
