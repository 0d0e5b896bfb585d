"""Whole simulated clusters: what they repeat, and what Dynamo's simulator says of the same small cases."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from deploy.simulate.cluster import Cluster, Shape
from deploy.simulate.comparison import POLICIES, Comparison
from deploy.simulate.load import Arrival
from deploy.simulate.policies import RoundRobin
from deploy.simulate.synthetic import Amount, chats, siblings
from replicas.config import EngineConfig
from tests.support.simulation import small_shape

MOCKER = EngineConfig(block_size=64, max_batched_tokens=8192, max_running=256, policy="fcfs")


def prompt(time, tokens, answer, name):
    return Arrival(time, tokens, answer, tuple(f"{name} {block}".encode() for block in range(tokens // 64)))


def ttfts_ms(*arrivals):
    """Of one replica like those of Dynamo's mocker."""
    cluster = Cluster(Shape(1, 16384, MOCKER), RoundRobin, 0)
    return (cluster.run(arrivals).ttft_seconds * 1e3).tolist()


class TestLikeTheMocker:
    """Figures of run_mocker_trace_replay, ai-dynamo-runtime 1.6.1, one worker, 16,384 blocks of 64 tokens."""

    def test_prompts_of_one_step_are_computed_together(self):
        assert ttfts_ms(prompt(0, 1000, 5, "a"), prompt(0, 3000, 5, "b")) == pytest.approx([83.971162] * 2)

    def test_a_long_prompt_is_computed_in_steps_beside_the_answers_that_run(self):
        arrivals = prompt(0, 1000, 60, "a"), prompt(0.1, 20000, 5, "b")
        assert ttfts_ms(*arrivals) == pytest.approx([32.105859, 434.159928])

    def test_a_step_takes_8192_tokens_or_one_less(self):
        arrivals = [prompt(0, 6000, 5, name) for name in "abc"]
        assert ttfts_ms(*arrivals) == pytest.approx([169.136918, 344.277932, 392.786633], abs=0.025)

    def test_siblings_of_one_step_share_their_prompt(self):
        assert ttfts_ms(prompt(0, 4096, 5, "a"), prompt(0, 4096, 5, "a")) == pytest.approx([86.950169] * 2)

    def test_a_cached_prompt_computes_its_last_block(self):
        arrivals = prompt(0, 4096, 5, "a"), prompt(1, 4096, 5, "a")
        assert ttfts_ms(*arrivals) == pytest.approx([85.755980, 17.474885])

    def test_a_request_waits_for_the_step_under_way(self):
        arrivals = prompt(0, 4096, 1, "a"), prompt(0.05, 64, 3, "b")
        assert ttfts_ms(*arrivals) == pytest.approx([85.755980, 53.230865])


@pytest.mark.parametrize("policy", POLICIES)
def test_every_request_is_served_and_a_seed_repeats_everything(policy):
    comparison = Comparison(small_shape(gateways=2), [policy], chats(Amount(30.0, 10.0, 16), Random(1)), 5)
    figures = comparison.serve(policy)
    assert np.isfinite(figures.seconds)
    assert 0 < figures.reuse < 1
    assert comparison.serve(policy) == figures


def test_one_to_eight_gateways_find_as_much_in_the_caches():
    arrivals = chats(Amount(40.0, 20.0, 16), Random(2))
    reuse = [
        Comparison(small_shape(gateways=gateways), ["mobula"], arrivals, 0).serve("mobula").reuse
        for gateways in (1, 2, 4, 8)
    ]
    assert min(reuse) > 0.97 * max(reuse)


def test_gateways_do_not_meet_at_a_replica_when_requests_come_at_the_same_moment():
    """Traces tell times in ticks; each gateway alone could know nothing of the others' choices of that moment."""
    arrivals = [replace(arrival, time=arrival.time // 2 * 2) for arrival in chats(Amount(16.0, 40.0, 16), Random(2))]
    one, eight = (
        Comparison(small_shape(replicas=8, gateways=gateways), ["mobula"], arrivals, 0).serve("mobula")
        for gateways in (1, 8)
    )
    assert eight.reuse > 0.99 * one.reuse  # each alone: 0.98
    assert eight.ttft_p99_ms < 1.06 * one.ttft_p99_ms  # each alone: 1.11


def test_placement_by_cost_finds_more_than_blind_placement_and_keeps_balance():
    arrivals = chats(Amount(40.0, 20.0, 16), Random(4))
    comparison = Comparison(small_shape(replicas=8), list(POLICIES), arrivals, 0)
    ours, blind = comparison.serve("mobula"), comparison.serve("power_of_two")
    assert ours.reuse > blind.reuse + 0.03
    assert ours.ttft_mean_ms < blind.ttft_mean_ms
    assert ours.imbalance < 1.3


def test_siblings_are_computed_in_few_places():
    arrivals = siblings(Amount(32.0, 20.0, 16), Random(4))
    comparison = Comparison(small_shape(replicas=8), list(POLICIES), arrivals, 0)
    assert comparison.serve("mobula").reuse > comparison.serve("power_of_two").reuse + 0.2
