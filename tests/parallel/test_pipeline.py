from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel.pipeline import split_layers


def sizes(*arguments: float) -> list[int]:
    return [len(layers) for layers in split_layers(*arguments)]


def test_equal_layers_are_spread_evenly_the_surplus_first():
    assert sizes(6, 3, 1.0, 0.0, 0.0) == [2, 2, 2]
    assert sizes(5, 3, 1.0, 0.0, 0.0) == [2, 2, 1]
    assert split_layers(5, 2, 1.0, 0.0, 0.0) == [range(3), range(3, 5)]


def test_a_dear_head_takes_layers_from_its_stage():
    assert sizes(30, 2, 1.0, 0.0, 8.0) == [19, 11]
    assert sizes(4, 2, 1.0, 0.0, 100.0) == [3, 1]


def test_a_dear_embedding_takes_layers_from_its_stage():
    assert sizes(9, 3, 1.0, 3.0, 0.0) == [1, 4, 4]


def test_one_stage_has_it_all():
    assert split_layers(7, 1, 1.0, 2.0, 3.0) == [range(7)]


def test_more_stages_than_layers_are_refused():
    with pytest.raises(ValueError, match="4 stages needs at least as many layers, not 3"):
        split_layers(3, 4, 1.0, 0.0, 0.0)


@given(
    num_layers=st.integers(1, 9),
    pipeline=st.integers(1, 4),
    embedding=st.integers(0, 6),
    head=st.integers(0, 6),
)
def test_no_other_split_has_a_cheaper_dearest_stage(num_layers, pipeline, embedding, head):
    if pipeline > num_layers:
        return

    def dearest(counts: tuple[int, ...]) -> float:
        costs = [2.0 * count for count in counts]
        costs[0] += embedding
        costs[-1] += head
        return max(costs)

    stages = split_layers(num_layers, pipeline, 2.0, embedding, head)
    assert [layer for stage in stages for layer in stage] == list(range(num_layers))
    splits = itertools.product(range(1, num_layers + 1), repeat=pipeline)
    best = min(dearest(counts) for counts in splits if sum(counts) == num_layers)
    assert dearest(tuple(map(len, stages))) == best
