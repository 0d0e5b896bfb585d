from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from parallel.channel import Channel
from replicas.plan import StepPlan, StepResults
from replicas.ranks.agreement import Mark, encode_mark, split_mark
from replicas.ranks.follower import follow
from replicas.ranks.leader import OVER
from replicas.ranks.plan_codec import encode_plan
from replicas.runner import Step


@dataclass
class Runner:
    """Draws the given tokens, a step each, instead of computing."""

    draws: list[Sequence[int | None]]
    knows_results: bool = True

    def expect(self, plan):
        pass

    def start(self, plan):
        return Step([], StepResults(list(self.draws.pop(0))))

    def finish(self, step):
        return step.results


def run(draws: list[Sequence[int | None]], marks: list[Mark], knows_results: bool = True) -> None:
    """Follow a rank 0 that sends one plan with each of these marks."""
    ours, theirs = map(Channel, socket.socketpair())
    for mark in marks:
        ours.send(encode_mark(mark) + encode_plan(StepPlan((), (), ())))
    ours.send(OVER)
    follow(Runner(draws, knows_results), theirs)


ONE = Mark().after([5, None])
TWO = ONE.after([7])


def test_a_mark_travels_in_front_of_a_plan():
    assert split_mark(encode_mark(TWO) + b"plan") == (TWO, b"plan")


def test_equal_draws_agree_however_far_rank_0_has_collected():
    run([[5, None], [7], [8]], [Mark(), ONE, TWO])
    run([[5, None], [7], [8]], [Mark(), Mark(), TWO])


@pytest.mark.parametrize("draws", [[[5, 6], [7], [8]], [[5, None], [6], [8]], [[6, None], [7], [8]]])
def test_other_draws_are_found(draws):
    with pytest.raises(RuntimeError, match="other tokens than rank 0 in the first 2 steps"):
        run(draws, [Mark(), Mark(), TWO])


def test_a_stage_that_knows_no_tokens_has_nothing_to_disagree_with():
    run([[], [], []], [Mark(), ONE, TWO], knows_results=False)
