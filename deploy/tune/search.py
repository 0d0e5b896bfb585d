"""What to try next: a coordinate search in which a challenger has to beat the champion.

A setting's worth is the highest request rate that it holds, which takes many runs to find. So it is found for the first
setting only. Any other one runs once, a little above the champion's rate: if it breaks there, it is no better, whatever
it could hold; if it holds, it is the champion, and its own highest rate is searched for. From the champion the search
goes up and down on one axis after another, on in the same direction as long as that wins, and across one loss, since
what does not matter here may matter further on. It ends when nothing on any axis wins.

A setting is a point: a position on each axis.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from math import sqrt

from deploy.bench.serve.sweep import Trial as RateTrial
from deploy.bench.serve.sweep import highest_held, next_rate

STEP = 1.1  # by how much a challenger must be better; so precise are the rates that are found
PATIENCE = 2  # losses in one direction before the search turns

Point = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Trial:
    """Run the setting at this request rate."""

    point: Point
    rate: float


@dataclass(frozen=True, slots=True)
class Result:
    """Whether a trial kept the objectives."""

    trial: Trial
    holds: bool


@dataclass(frozen=True, slots=True)
class Champion:
    """The best setting so far, and the highest rate that it held."""

    point: Point
    rate: float


@dataclass(frozen=True, slots=True)
class Space:
    """Axes with so many positions each, and which points of the grid can be run at all."""

    sizes: Sequence[int]
    valid: Callable[[Point], bool]

    def beyond(self, point: Point, axis: int, direction: int) -> Iterator[Point]:
        """The valid points from here on, nearest first."""
        for position in range(point[axis] + direction, self.sizes[axis] if direction > 0 else -1, direction):
            moved = (*point[:axis], position, *point[axis + 1 :])
            if self.valid(moved):
                yield moved


Search = Generator[Trial, bool, None]  # yields trials, and is sent whether each one held


def search(space: Space, start: Point, first_rate: float) -> Search:
    """All trials in order."""
    champion = yield from _first_champion(start, first_rate)
    tried = {start}
    axis = unmoved = 0
    while unmoved < len(space.sizes):
        before = champion
        for direction in (1, -1):
            champion = yield from _climb(space, champion, axis, direction, tried)
        unmoved = 0 if champion != before else unmoved + 1
        axis = (axis + 1) % len(space.sizes)


def conduct(trials: Search, run: Callable[[Trial], bool], most: int) -> list[Result]:
    """Run a search's trials, but at most so many."""
    results: list[Result] = []
    trial = next(trials, None)
    while trial is not None and len(results) < most:
        results.append(Result(trial, run(trial)))
        try:
            trial = trials.send(results[-1].holds)
        except StopIteration:
            trial = None
    return results


def best(results: Sequence[Result]) -> Champion | None:
    """The point that held the highest rate, below all at which it broke. None if nothing held."""
    champions = [
        Champion(point, rate)
        for point in dict.fromkeys(result.trial.point for result in results)
        if (rate := held_rate(results, point)) is not None
    ]
    return max(champions, key=lambda champion: champion.rate, default=None)


def held_rate(results: Sequence[Result], point: Point) -> float | None:
    return highest_held([RateTrial(each.trial.rate, each.holds) for each in results if each.trial.point == point])


def _first_champion(start: Point, first_rate: float) -> Generator[Trial, bool, Champion]:
    """If the start holds nothing, whatever holds the lowest rate that was tried beats it."""
    rates: list[RateTrial] = []
    while (rate := next_rate(rates, first_rate)) is not None:
        rates.append(RateTrial(rate, (yield Trial(start, rate))))
    return Champion(start, highest_held(rates) or min(trial.rate for trial in rates) / STEP)


def _climb(
    space: Space, champion: Champion, axis: int, direction: int, tried: set[Point]
) -> Generator[Trial, bool, Champion]:
    """Go in one direction until so many points in a row lose."""
    losses = 0
    for point in space.beyond(champion.point, axis, direction):
        if losses == PATIENCE:
            break
        if point in tried:
            losses += 1
            continue
        tried.add(point)
        challenge = Trial(point, champion.rate * STEP)
        if (yield challenge):
            champion, losses = (yield from _raised(challenge)), 0
        else:
            losses += 1
    return champion


def _raised(held: Trial) -> Generator[Trial, bool, Champion]:
    """The highest rate of a point that held this one: up in ever longer steps until it breaks, then bisect."""
    rate, factor = held.rate, STEP
    while (yield Trial(held.point, rate * factor)):
        rate, factor = rate * factor, factor * factor
    broken = rate * factor
    while broken / rate > STEP * (1 + 1e-9):
        middle = sqrt(rate * broken)
        if (yield Trial(held.point, middle)):
            rate = middle
        else:
            broken = middle
    return Champion(held.point, rate)
