"""The search, on landscapes whose highest rates are known: it ends where no neighbour is better."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.tune.search import PATIENCE, STEP, Champion, Point, Result, Space, Trial, best, conduct, held_rate, search

SLACK = 1 + 1e-6
Capacity = Callable[[Point], float]


def everywhere(_: Point) -> bool:
    return True


def climb(space: Space, start: Point, capacity: Capacity, most: int = 10_000) -> list[Result]:
    """A setting holds every rate up to its capacity."""
    return conduct(search(space, start, 1.0), lambda trial: trial.rate <= capacity(trial.point), most)


def found(results: list[Result]) -> Champion:
    champion = best(results)
    assert champion is not None
    return champion


def random_landscape(seed: int, sizes: tuple[int, ...]) -> dict[Point, float]:
    rng = random.Random(seed)
    return {point: 2 ** rng.uniform(-3, 5) for point in itertools.product(*map(range, sizes))}


def neighbours(point: Point, space: Space) -> list[Point]:
    """Those within the search's patience on one axis."""
    near = []
    for axis, direction in itertools.product(range(len(point)), (1, -1)):
        near += list(itertools.islice(space.beyond(point, axis, direction), PATIENCE))
    return near


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple),
    data=st.data(),
)
def test_no_neighbour_of_what_is_found_is_better(seed: int, sizes: tuple[int, ...], data: st.DataObject) -> None:
    landscape = random_landscape(seed, sizes)
    start = tuple(data.draw(st.integers(0, size - 1)) for size in sizes)
    space = Space(sizes, lambda point: sum(point) % 5 != 4 or point == start)
    results = climb(space, start, landscape.__getitem__)
    champion = found(results)
    assert champion.rate <= landscape[champion.point] <= champion.rate * STEP * SLACK
    for point in neighbours(champion.point, space):
        assert landscape[point] <= champion.rate * STEP * SLACK
    assert champion.rate * STEP * SLACK >= landscape[start]
    assert all(space.valid(result.trial.point) for result in results)
    assert len({result.trial for result in results}) == len(results)


@pytest.mark.parametrize("peak", [(0, 0, 0), (6, 7, 5), (2, 5, 1), (4, 6, 3)])
def test_on_a_single_hill_the_top_is_found_in_few_runs(peak: Point) -> None:
    sizes = (7, 8, 6)

    def capacity(point: Point) -> float:
        return 10 * 0.8 ** math.dist(point, peak)

    results = climb(Space(sizes, everywhere), (4, 6, 1), capacity)
    assert found(results).point == peak
    assert len(results) < math.prod(sizes) / 5


def test_a_challenger_that_loses_costs_one_run() -> None:
    results = climb(Space((3, 3), everywhere), (1, 1), lambda point: 4.0 if point == (1, 1) else 1.0)
    others = [result.trial for result in results if result.trial.point != (1, 1)]
    assert [trial.point for trial in others] == [(2, 1), (0, 1), (1, 2), (1, 0)]
    assert all(trial.rate == pytest.approx(found(results).rate * STEP) for trial in others)


def test_one_loss_is_crossed_where_something_better_lies_behind_it() -> None:
    capacities = {(0,): 1.0, (1,): 1.0, (2,): 5.0}
    assert found(climb(Space((3,), everywhere), (0,), capacities.__getitem__)).point == (2,)


def test_a_start_that_holds_nothing_loses_to_whatever_holds_something() -> None:
    results = climb(Space((2,), everywhere), (0,), lambda point: point[0] * 3.0)
    assert found(results) == Champion((1,), pytest.approx(3.0, rel=STEP - 1))


def test_where_nothing_holds_nothing_is_found_and_the_search_ends() -> None:
    results = climb(Space((3, 3), everywhere), (0, 0), lambda point: 0.0)
    assert best(results) is None
    assert held_rate(results, (0, 0)) is None
    assert len(results) < 20


@given(most=st.integers(1, 40))
def test_a_search_that_is_cut_short_has_the_best_so_far(most: int) -> None:
    space = Space((7, 8, 6), everywhere)
    whole = climb(space, (4, 6, 1), lambda point: 1.5 ** sum(point))
    cut = climb(space, (4, 6, 1), lambda point: 1.5 ** sum(point), most)
    assert cut == whole[:most]
    assert len(cut) == min(most, len(whole))


def test_a_rate_that_held_above_one_that_broke_does_not_count() -> None:
    results = [
        Result(Trial((0,), rate), holds) for rate, holds in ((1.0, True), (2.0, False), (3.0, True), (1.5, True))
    ]
    assert best(results) == Champion((0,), 1.5)
