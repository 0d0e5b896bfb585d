"""What a run has shown: when each request was served, what the steps took, and the figures made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from deploy.simulate.load import Arrival
from deploy.simulate.timing import Seconds
from replicas.messages import StepOutput

TTFT_SECONDS, ITL_SECONDS = 2.0, 0.05  # what goodput asks for


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one policy. `reuse` is prompt tokens found in a KV cache over all; `goodput` the share of the offered requests
    whose first token came within 2 s and whose further ones came every 50 ms on average; `imbalance` the busiest
    replica's request-seconds over the mean of all."""

    reuse: float
    ttft_mean_ms: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    itl_mean_ms: float
    itl_p99_ms: float
    goodput: float
    imbalance: float
    requests: int
    requests_per_second: float
    preemptions: int
    seconds: float


class Journal:
    """Filled while the cluster runs; `figures` sums it up."""

    def __init__(self, arrivals: Sequence[Arrival], replicas: list[str]) -> None:
        self._arrivals = arrivals
        self._first = np.full(len(arrivals), np.inf)
        self._last = np.full(len(arrivals), np.inf)
        self._cached = np.zeros(len(arrivals), dtype=np.int64)
        self._place = {name: place for place, name in enumerate(replicas)}
        self._placed = np.full(len(arrivals), -1)
        self._steps: list[Seconds] = []
        self._decodes: list[int] = []
        self._preemptions = 0

    def place(self, request_id: str, replica: str) -> None:
        self._placed[int(request_id)] = self._place[replica]

    def steps(self, seconds: Seconds, decodes: int) -> None:
        if decodes:
            self._steps.append(seconds)
            self._decodes.append(decodes)

    def output(self, output: StepOutput, now: float) -> None:
        for event in output.events:
            if event.offset == 0:
                self._first[int(event.request_id)] = now
            if event.finish_reason is not None:
                self._last[int(event.request_id)] = now
        for summary in output.finished:
            self._cached[int(summary.request_id)] = summary.cached_tokens
            self._preemptions += summary.preemptions

    @property
    def ttft_seconds(self) -> Seconds:
        seconds: Seconds = self._first - np.array([arrival.time for arrival in self._arrivals])
        return seconds

    def figures(self) -> Figures:
        times = np.array([arrival.time for arrival in self._arrivals])
        tokens = np.array([arrival.num_tokens for arrival in self._arrivals])
        answers = np.array([arrival.max_tokens for arrival in self._arrivals])
        ttft = self.ttft_seconds
        itl = (self._last - self._first) / np.maximum(answers - 1, 1)
        itl_mean, itl_p99 = self._itl()
        return Figures(
            reuse=float(self._cached.sum() / tokens.sum()),
            ttft_mean_ms=float(ttft.mean() * 1e3),
            ttft_p50_ms=float(np.percentile(ttft, 50) * 1e3),
            ttft_p99_ms=float(np.percentile(ttft, 99) * 1e3),
            itl_mean_ms=itl_mean * 1e3,
            itl_p99_ms=itl_p99 * 1e3,
            goodput=float(np.mean((ttft <= TTFT_SECONDS) & (itl <= ITL_SECONDS))),
            imbalance=self._imbalance(self._last - times),
            requests=len(times),
            requests_per_second=float(len(times) / max(times[-1] - times[0], 1e-9)),
            preemptions=self._preemptions,
            seconds=float(self._last.max()),
        )

    def _itl(self) -> tuple[float, float]:
        """Mean and 99th percentile of the times between tokens."""
        if not self._steps:
            return 0.0, 0.0
        seconds = np.concatenate(self._steps)
        weights = np.repeat(self._decodes, [len(each) for each in self._steps])
        order = np.argsort(seconds)
        below = np.cumsum(weights[order])
        p99 = seconds[order][np.searchsorted(below, 0.99 * below[-1])]
        return float(np.average(seconds, weights=weights)), float(p99)

    def _imbalance(self, stays: Seconds) -> float:
        load = np.bincount(self._placed, weights=stays, minlength=len(self._place))
        return float(load.max() / load.mean())
