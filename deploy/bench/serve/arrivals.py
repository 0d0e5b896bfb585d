"""When requests arrive in an open loop: whether or not the earlier ones have been answered."""

from __future__ import annotations

from collections.abc import Sequence

from numpy.random import Generator


def gamma_arrivals(count: int, rate: float, burstiness: float, rng: Generator) -> list[float]:
    """Seconds of `count` arrivals, `rate` a second on average, whose gaps are gamma distributed with shape
    `burstiness`: 1 is a Poisson process, less is burstier, more is more even. The first comes after a gap."""
    gaps = rng.gamma(burstiness, 1.0 / (rate * burstiness), count)
    arrivals: list[float] = gaps.cumsum().tolist()
    return arrivals


def at_rate(arrivals: Sequence[float], rate: float) -> list[float]:
    """The same pattern, `rate` a second on average."""
    span = arrivals[-1] - arrivals[0]
    if span == 0:
        return [0.0] * len(arrivals)
    speed = rate * span / (len(arrivals) - 1)
    return faster(arrivals, speed)


def faster(arrivals: Sequence[float], speed: float) -> list[float]:
    """The same pattern, so many times as fast."""
    return [arrival / speed for arrival in arrivals]
