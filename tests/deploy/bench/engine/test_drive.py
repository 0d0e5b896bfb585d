"""Driving an engine in this process, on a virtual clock: who enters when, and what counts as a wait."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from deploy.bench.engine.drive import as_request, drive
from deploy.bench.serve.workload import Conversation, Piece, Turn
from deploy.errors import UserError
from replicas.config import EngineConfig
from replicas.engine import Engine, ServedModel
from replicas.plan import StepPlan
from tests.support.checking_executor import VOCAB_SIZE, CheckingExecutor

STEP_SECONDS = 1.0


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class SlowExecutor(CheckingExecutor):
    """Each step takes a second."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(num_blocks=64, block_size=4)
        self.clock = clock

    def submit(self, plan: StepPlan) -> None:
        super().submit(plan)
        if plan.work:
            self.clock.sleep(STEP_SECONDS)


def slow_engine(clock: Clock) -> Engine:
    config = EngineConfig(block_size=4)
    return Engine(config, ServedModel("slow", VOCAB_SIZE, 40, (), 64), SlowExecutor(clock), clock)


def planned(start: float, prompt: int = 6, output: int = 3, key: int = 0) -> Conversation:
    return Conversation((Turn((Piece((key,), prompt),), output),), start)


def test_a_request_that_arrives_within_a_step_waits_for_its_end_and_the_wait_counts() -> None:
    clock = Clock()
    run = drive(slow_engine(clock), [planned(0.25, key=2), planned(0.0, key=1)], clock, clock.sleep)
    first, second = sorted(run.outcomes, key=lambda outcome: outcome.scheduled)
    assert (first.scheduled, first.sent, list(first.events)) == (100.0, 100.0, [101.0, 102.0, 103.0])
    assert (second.scheduled, second.sent, list(second.events)) == (100.25, 101.0, [102.0, 103.0, 104.0])
    assert second.ttft == 1.75
    assert second.ended == 104.0
    assert run.seconds == 4.0


def test_an_idle_engine_sleeps_until_the_next_arrival() -> None:
    clock = Clock()
    run = drive(slow_engine(clock), [planned(0.0, key=1), planned(50.0, key=2)], clock, clock.sleep)
    assert [outcome.sent for outcome in run.outcomes] == [100.0, 150.0]
    assert [outcome.ttft for outcome in run.outcomes] == [1.0, 1.0]


def test_answers_have_their_planned_length_and_equal_beginnings_are_reused() -> None:
    clock = Clock()
    engine = slow_engine(clock)
    run = drive(engine, [planned(0.0, prompt=9, output=5), planned(20.0, prompt=9, output=2)], clock, clock.sleep)
    assert [outcome.output_tokens for outcome in run.outcomes] == [5, 2]
    assert [outcome.prompt_tokens for outcome in run.outcomes] == [9, 9]
    assert [outcome.cached_tokens for outcome in run.outcomes] == [0, 8]
    assert engine.idle
    assert not engine.has_work


def test_equal_pieces_are_equal_tokens_within_the_vocabulary() -> None:
    shared = Piece((7,), 20)
    ids = [
        as_request(Conversation((Turn((shared, Piece((own,), 5)), 4),)), "x", VOCAB_SIZE).token_ids for own in (1, 2)
    ]
    assert ids[0][:20] == ids[1][:20]
    assert ids[0][20:] != ids[1][20:]
    assert all(0 <= token < VOCAB_SIZE for token in ids[0])
    assert len(set(ids[0])) > 10


def test_a_request_that_cannot_fit_is_the_callers_mistake() -> None:
    clock = Clock()
    with pytest.raises(UserError, match=r"cannot serve the load.*limit of 40 tokens"):
        drive(slow_engine(clock), [planned(0.0, prompt=39, output=5)], clock, clock.sleep)
