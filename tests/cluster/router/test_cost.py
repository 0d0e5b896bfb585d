"""What a placement costs, term by term, in seconds."""

from __future__ import annotations

import numpy as np
import pytest

import cluster.router.cost
from cluster.router.cost import ANSWER_SHARE, ANSWER_TOKENS, FOLLOWERS, UNDER_WAY, FleetFigures
from cluster.router.load import Booking, ReplicaLoad
from replicas.messages import LoadReport
from tests.support.loads import table_of

FLEET = FleetFigures(prefill_rate=1000.0)


def replica(**report):
    return ReplicaLoad(LoadReport(**{"prefill_rate": 1000.0} | report))


def cost_seconds(load, uncached, fleet):
    (seconds,) = cluster.router.cost.cost_seconds(table_of(load).columns, np.array([float(uncached)]), fleet)
    return seconds


def test_each_replica_has_a_cost_of_its_own():
    loads = [replica(), replica(waiting_prefill_tokens=700), replica(running=4)]
    uncached = np.array([500.0, 5000.0, 1.0])
    together = cluster.router.cost.cost_seconds(table_of(*loads).columns, uncached, FLEET)
    assert together.tolist() == [cost_seconds(*one, FLEET) for one in zip(loads, uncached, strict=True)]


def test_on_an_idle_replica_a_prompt_costs_its_own_time_and_that_of_its_followers():
    assert cost_seconds(replica(), 500, FLEET) == pytest.approx(0.5 * (1 + FOLLOWERS))


def test_a_cached_prompt_costs_next_to_nothing():
    assert cost_seconds(replica(), 1, FLEET) < 0.01


def test_a_long_prompt_waits_for_all_that_is_queued():
    load = replica(waiting_prefill_tokens=700)
    assert cost_seconds(load, 5000, FLEET) - cost_seconds(replica(), 5000, FLEET) == pytest.approx(0.7)


def test_a_short_prompt_overtakes_what_is_queued_and_pays_for_it():
    load = replica(waiting_prefill_tokens=50_000, step_seconds=0.1)
    wait = 0.1 + UNDER_WAY * 0.1
    assert cost_seconds(load, 100, FLEET) - cost_seconds(replica(), 100, FLEET) == pytest.approx(wait + 0.1)


def test_what_runs_is_held_up():
    busy = replica(running=4)
    assert cost_seconds(busy, 500, FLEET) - cost_seconds(replica(), 500, FLEET) == pytest.approx(4 * ANSWER_SHARE * 0.5)


def test_where_more_is_stored_more_is_displaced():
    fleet = FleetFigures(prefill_rate=1000.0, hit_rate=0.5, churn=100.0)
    calm, churning = replica(), replica()
    calm.churn, churning.churn = 50.0, 150.0
    assert cost_seconds(churning, 500, fleet) - cost_seconds(calm, 500, fleet) == pytest.approx(0.5 * 0.5 * 1.0)


def test_an_answer_is_slower_where_steps_are_longer():
    fleet = FleetFigures(prefill_rate=1000.0, decode_step_seconds=0.01)
    crowded, calm = replica(running=2, decode_step_seconds=0.03), replica(running=2, decode_step_seconds=0.01)
    difference = cost_seconds(crowded, 1, fleet) - cost_seconds(calm, 1, fleet)
    assert difference == pytest.approx(ANSWER_SHARE * ANSWER_TOKENS * 0.02)


def test_the_time_to_the_first_token_counts_the_step_under_way_the_queue_and_what_is_on_its_way():
    load = replica(waiting_prefill_tokens=300, step_seconds=0.05)
    load.book("other", Booking(200, 4))
    (seconds,) = cluster.router.cost.ttft_seconds(table_of(load).columns, 500)
    assert seconds == pytest.approx(0.05 + 1.0)
