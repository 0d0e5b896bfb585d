"""Reuse of one big cache, against a search through everything that a cache could do."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.simulate.bounds import bounds
from deploy.simulate.load import Arrival


def single(name):
    """A prompt of one block and one more token."""
    return Arrival(0.0, 2, 1, (name.encode(),))


def best_hits(names, size):
    """The most hits that any cache of `size` blocks could have."""

    @cache
    def best(turn, held):
        if turn == len(names):
            return 0
        after = held | {names[turn]}
        kept = [after - {gone} for gone in after] if len(after) > size else [after]
        return (names[turn] in held) + max(best(turn + 1, frozenset(each)) for each in kept)

    return best(0, frozenset())


@settings(max_examples=60, deadline=None)
@given(st.text("abcde", min_size=1, max_size=12), st.integers(1, 3))
def test_belady_is_the_best_that_can_be(names, size):
    found = bounds([single(name) for name in names], 1, size)
    assert found.belady_reuse == pytest.approx(best_hits(names, size) / (2 * len(names)))
    assert found.pooled_lru_reuse <= found.belady_reuse <= found.ideal_reuse


def test_the_least_recently_used_block_goes():
    found = bounds([single(name) for name in "abacbac"], 1, 2)
    assert found.pooled_lru_reuse == pytest.approx(1 / 14)
    assert found.ideal_reuse == pytest.approx(4 / 14)


def test_a_prefix_counts_as_far_as_it_is_held_and_leaves_one_token():
    long = Arrival(0.0, 4, 1, (b"a", b"b", b"c", b"d"))
    assert bounds([long, long], 1, 10).ideal_reuse == pytest.approx(3 / 8)
