from __future__ import annotations

import pytest

from deploy.bench.pipeline import run_pipeline
from deploy.bench.plan_channel import measure

pytestmark = pytest.mark.slow

SECONDS = 0.1


def test_a_stage_starts_the_next_batch_before_the_other_has_finished_the_last():
    first, second = run_pipeline(stages=2, depth=2, model_seconds=SECONDS, tokens=6).stages
    overlapping = [first[step + 1][0] < second[step][1] for step in range(1, len(first) - 1)]
    assert all(overlapping)


def test_with_one_batch_in_flight_the_stages_take_turns():
    first, second = run_pipeline(stages=2, depth=1, model_seconds=SECONDS, tokens=6).stages
    assert all(first[step + 1][0] > second[step][1] for step in range(len(first) - 1))


def test_every_rank_gets_the_plans():
    figures = measure(batch=8, ranks=3, steps=5)
    assert figures["way"] > figures["encode"] > 0
