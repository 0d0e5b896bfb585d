"""Pipeline stages: which layers each of them computes, and how tensors pass from one to another.

Sends and receives are posted ahead of need: a stage goes on to its next batch while the last one's hidden states
travel, and a batch that arrives while a stage computes is there when it is done.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise

import torch
import torch.distributed as dist


def split_layers(
    num_layers: int, pipeline: int, layer_cost: float, embedding_cost: float, head_cost: float
) -> list[range]:
    """Contiguous stages of at least one layer each, so that the dearest stage is as cheap as can be: the embedding
    weighs on the first stage and the head on the last. With equal layers, giving each to the stage that is cheapest
    with it is optimal; on a tie the earlier stage gets it."""
    if not 1 <= pipeline <= num_layers:
        raise ValueError(f"pipeline parallelism over {pipeline} stages needs at least as many layers, not {num_layers}")
    counts = [1] * pipeline
    costs = [layer_cost] * pipeline
    costs[0] += embedding_cost
    costs[-1] += head_cost
    for _ in range(num_layers - pipeline):
        stage = min(range(pipeline), key=costs.__getitem__)
        counts[stage] += 1
        costs[stage] += layer_cost
    starts = [sum(counts[:stage]) for stage in range(pipeline + 1)]
    return [range(start, stop) for start, stop in pairwise(starts)]


class Outbox:
    """Tensors on their way to one other rank, in order. Waits only when more than `depth` are unread. A `tag` keeps
    them apart from those of other boxes between the same ranks."""

    def __init__(self, rank: int, depth: int, group: dist.ProcessGroup | None = None, tag: int = 0) -> None:
        self._rank = rank
        self._depth = depth
        self._group = group
        self._tag = tag
        self._unread: deque[tuple[torch.Tensor, dist.Work]] = deque()

    def send(self, x: torch.Tensor) -> None:
        """`x` may not be changed afterwards."""
        x = x.contiguous()
        work = dist.isend(x, self._rank, group=self._group, tag=self._tag)
        assert work is not None
        self._unread.append((x, work))
        if len(self._unread) > self._depth:
            self._unread.popleft()[1].wait()

    def flush(self) -> None:
        """Wait until all has been read."""
        while self._unread:
            self._unread.popleft()[1].wait()


class Inbox:
    """Tensors expected from one other rank, in order."""

    def __init__(self, rank: int, group: dist.ProcessGroup | None = None, tag: int = 0) -> None:
        self._rank = rank
        self._group = group
        self._tag = tag
        self._expected: deque[tuple[torch.Tensor, dist.Work]] = deque()

    def expect(self, x: torch.Tensor) -> None:
        """Let the next tensor that the other rank sends be written into `x`."""
        work = dist.irecv(x, self._rank, group=self._group, tag=self._tag)
        assert work is not None
        self._expected.append((x, work))

    def receive(self) -> torch.Tensor:
        """Wait for the oldest expected tensor."""
        x, work = self._expected.popleft()
        work.wait()
        return x
