"""Two servers in one run: short rounds that take turns, and ratios with the intervals that the rounds support.

A machine's speed drifts. So the servers are measured A B B A A B B A ..., and each pair of neighbouring rounds sends
the same load. The intervals come from the bootstrap over pairs (Efron 1979): requests of one round share their
fate, so pairs are what can be drawn again independently. Pairs are few, and the plain percentiles of a bootstrap are
then too close together (Hesterberg 2015); so the spread of the drawn ratios' logarithms is widened as for a mean of
so many values: by Student's quantile in place of the normal one, and by sqrt(n / (n - 1)).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, sqrt
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

from deploy.bench.serve.outcome import Outcome, duration, e2es, itls, tpots, ttfts, whole
from deploy.bench.serve.slo import Slo

CONFIDENCE = 0.95
RESAMPLES = 400
FEWEST_PAIRS = 4

Rounds = Sequence[Sequence[Outcome]]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Metric:
    """A number that is computed from some of the rounds: `seen` is what one round adds to it."""

    name: str
    unit: str
    seen: Callable[[Sequence[Outcome]], Floats]
    reduce: Callable[[Sequence[Floats]], float]


@dataclass(frozen=True, slots=True)
class Ratio:
    """The first server's value divided by the second's, with its confidence interval. None where a value is 0 or
    there is none."""

    metric: str
    unit: str
    first: float
    second: float
    ratio: float | None
    low: float | None
    high: float | None

    @property
    def decided(self) -> bool:
        """Whether the interval leaves out 1."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high


def order(pairs: int) -> list[int]:
    """Whose turn it is in each of two rounds a pair: 0 1 1 0 0 1 1 0 ..."""
    return [(index + index // 2) % 2 for index in range(2 * pairs)]


def compare(first: Rounds, second: Rounds, slo: Slo, rng: Generator) -> list[Ratio]:
    """Pairs are the rounds of equal index."""
    assert len(first) == len(second) >= FEWEST_PAIRS
    draws = rng.integers(0, len(first), (RESAMPLES, len(first)))
    return [_ratio(metric, first, second, draws.tolist()) for metric in metrics(slo)]


def metrics(slo: Slo) -> list[Metric]:
    found = [
        _latency("TTFT p50", ttfts, 50),
        _latency("TTFT p99", ttfts, 99),
        _latency("ITL p50", itls, 50),
        _latency("ITL p99", itls, 99),
        _latency("TPOT p50", tpots, 50),
        _latency("end-to-end p50", e2es, 50),
        _latency("end-to-end p99", e2es, 99),
        _rate("output", "tokens/s", lambda outcomes: sum(outcome.output_tokens for outcome in whole(outcomes))),
    ]
    if slo:
        found.append(_rate("goodput", "requests/s", lambda outcomes: sum(slo.keeps(outcome) for outcome in outcomes)))
    return found


def _latency(name: str, values: Callable[[Sequence[Outcome]], list[float]], percent: float) -> Metric:
    """A percentile of what all chosen rounds saw together; not a number if they saw nothing."""

    def seen(outcomes: Sequence[Outcome]) -> Floats:
        return 1e3 * np.array(values(whole(outcomes)), float)

    def reduce(chosen: Sequence[Floats]) -> float:
        found = np.concatenate(chosen)
        return float(np.percentile(found, percent)) if found.size else float("nan")

    return Metric(name, "ms", seen, reduce)


def _rate(name: str, unit: str, amount: Callable[[Sequence[Outcome]], int]) -> Metric:
    """So much a second, over the chosen rounds together."""

    def seen(outcomes: Sequence[Outcome]) -> Floats:
        return np.array([amount(outcomes), duration(outcomes)], float)

    def reduce(chosen: Sequence[Floats]) -> float:
        total, seconds = np.sum(chosen, axis=0).tolist()
        return float(total / seconds)

    return Metric(name, unit, seen, reduce)


def _ratio(metric: Metric, first: Rounds, second: Rounds, draws: list[list[int]]) -> Ratio:
    sides = [[metric.seen(outcomes) for outcomes in rounds] for rounds in (first, second)]
    one, other = (metric.reduce(side) for side in sides)
    drawn = np.array([[metric.reduce([side[index] for index in draw]) for side in sides] for draw in draws])
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = drawn[:, 0] / drawn[:, 1]
    if not np.isfinite(ratios).all() or (ratios <= 0).any():
        return Ratio(metric.name, metric.unit, one, other, None, None, None)
    pairs = len(first)
    width = students_quantile((1 + CONFIDENCE) / 2, pairs - 1) * sqrt(pairs / (pairs - 1)) * np.log(ratios).std()
    factor = exp(width)
    return Ratio(metric.name, metric.unit, one, other, one / other, one / other / factor, one / other * factor)


def students_quantile(probability: float, freedom: int) -> float:
    """Of the t distribution, by its expansion around the normal one (Abramowitz & Stegun 26.7.5): within 1 % from 3
    degrees of freedom on."""
    z = NormalDist().inv_cdf(probability)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return sum(term / float(freedom) ** power for power, term in enumerate(terms))
