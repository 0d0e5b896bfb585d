"""Which requests are sent, at which times: a synthetic load or a trace, both of which can be cut and sped up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

import numpy as np

from deploy.bench.serve.arrivals import at_rate, faster, gamma_arrivals
from deploy.bench.serve.traces import TraceRow
from deploy.bench.serve.workload import Conversation, Key, Shape, conversations, replay, starting_at


class Load(Protocol):
    """`planned` spells the load in the words of `text`; the rest is decided by the load alone."""

    @property
    def rate(self) -> float | None: ...

    def planned(self, text: Key) -> list[Conversation]: ...

    def at_rate(self, rate: float) -> Load: ...

    def parts(self, count: int) -> list[Load]: ...


FEWEST_REQUESTS = 20


@dataclass(frozen=True, slots=True)
class Synthetic:
    """`requests` of a shape, or as many as arrive in `duration` seconds, but enough to judge by. Without a rate they
    have no times: that is for a closed loop."""

    shape: Shape
    requests: int | None
    duration: float | None
    rate: float | None
    burstiness: float
    seed: Key

    def planned(self, text: Key) -> list[Conversation]:
        rng = np.random.default_rng(self.seed)
        turns = self.shape.turns
        planned = conversations(self.shape, max(1, round(self._requests / turns)), rng, text)
        if self.rate is None:
            return planned
        return starting_at(planned, gamma_arrivals(len(planned), self.rate / turns, self.burstiness, rng))

    def at_rate(self, rate: float) -> Synthetic:
        return replace(self, rate=rate)

    def parts(self, count: int) -> list[Load]:
        """Equal parts, each with lengths and times of its own."""
        requests = max(1, round(self._requests / count))
        return [replace(self, requests=requests, duration=None, seed=(*self.seed, part)) for part in range(count)]

    @property
    def _requests(self) -> float:
        if self.requests is not None:
            return self.requests
        assert self.rate is not None, "a duration needs a rate"
        assert self.duration is not None
        return max(FEWEST_REQUESTS, self.rate * self.duration)


@dataclass(frozen=True, slots=True)
class Replay:
    """A trace, `speed` times as fast, or so fast that its mean rate is `rate`."""

    rows: Sequence[TraceRow]
    length_scale: float
    rate: float | None
    speed: float

    def planned(self, text: Key) -> list[Conversation]:
        times = [row.at - self.rows[0].at for row in self.rows]
        starts = faster(times, self.speed) if self.rate is None else at_rate(times, self.rate)
        return starting_at(replay(self.rows, self.length_scale, text), starts)

    def at_rate(self, rate: float) -> Replay:
        return replace(self, rate=rate)

    def parts(self, count: int) -> list[Load]:
        """The trace cut into stretches of equally many requests."""
        cuts = [round(part * len(self.rows) / count) for part in range(count + 1)]
        return [replace(self, rows=self.rows[start:end]) for start, end in pairwise(cuts) if start < end]
