"""The arithmetic of communication against what real ranks hand to `torch.distributed`."""

from __future__ import annotations

import pytest

from deploy.bench.communication import COUNTED, compare, costs
from deploy.plan.communication import Step, step_traffic
from deploy.plan.layout import Layout
from deploy.plan.shapes import SHAPES


@pytest.mark.parametrize("layout", [Layout(2, 1), Layout(1, 2)], ids=str)
def test_two_ranks_say_what_was_computed(layout: Layout) -> None:
    steps = compare([layout])
    assert [step.step for step in steps] == ["prefill", "decode"]
    for step in steps:
        assert step.counted == step.computed, step.step


@pytest.mark.slow
@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("layout", COUNTED, ids=str)
def test_every_layout_says_what_was_computed(layout: Layout, greedy: bool) -> None:
    for step in compare([layout], greedy):
        assert step.counted == step.computed, step.step


def test_one_rank_has_nobody_to_talk_to() -> None:
    assert step_traffic(SHAPES["llama-3.1-8b"], Layout(1, 1), Step(64, 64, True, 2)) == []


def test_the_partial_sums_of_a_layer_cost_no_more_than_they_must() -> None:
    """64 tokens of 8192 numbers: 80 layers of two sums, and the embedding's, which a broadcast would halve."""
    cost = next(each for each in costs(SHAPES["llama-3.3-70b"], 64, greedy=True) if each.layout == Layout(2, 1))
    hidden = 64 * 8192 * 2
    assert cost.calls == 80 * 2 + 1 + 1
    assert cost.wire_bytes == 161 * 2 * hidden + 2 * 64 * 16
    assert cost.minimum == 160 * 2 * hidden + hidden + 2 * 64 * 8
