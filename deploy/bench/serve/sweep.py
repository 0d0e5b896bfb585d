"""Which request rate to try next, to find the highest that keeps the objectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

PRECISION = 1.1  # the search ends when the lowest rate that broke is within this factor of the highest that held
LOWEST_SHARE = 1 / 64  # of the first rate: below this nothing holds


@dataclass(frozen=True, slots=True)
class Trial:
    """A rate that was tried, and whether it held."""

    rate: float
    holds: bool


def next_rate(trials: Sequence[Trial], start: float) -> float | None:
    """Double until the objectives break (or halve until they hold), then bisect on a logarithmic scale. None when
    there is nothing left to try."""
    if not trials:
        return start
    broken = min((trial.rate for trial in trials if not trial.holds), default=None)
    held = highest_held(trials)
    if broken is None:
        assert held is not None
        return 2 * held
    if held is None:
        return broken / 2 if broken / 2 >= start * LOWEST_SHARE else None
    return sqrt(held * broken) if broken / held > PRECISION else None


def highest_held(trials: Sequence[Trial]) -> float | None:
    """The highest rate that held, below all that broke."""
    broken = min((trial.rate for trial in trials if not trial.holds), default=float("inf"))
    return max((trial.rate for trial in trials if trial.holds and trial.rate < broken), default=None)
