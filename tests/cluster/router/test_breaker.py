"""The circuit breaker, under a clock that the test turns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.router.breaker import (
    CALM_SECONDS,
    FAILURES,
    FIRST_PAUSE,
    MAX_PAUSE,
    PROBE_SECONDS,
    SAMPLE_SECONDS,
    SAMPLES,
    Breaker,
)

REPLICAS = ("a", "b", "c", "d")


def fail(breaker: Breaker, replica: str, now: float) -> None:
    """As often as it takes."""
    for _ in range(FAILURES):
        breaker.failed(replica, now)


def answer(breaker: Breaker, slowness: dict[str, float], now: float, times: int = SAMPLES) -> None:
    """Every replica answers so many requests, with a slowness of its own."""
    for _ in range(times):
        for replica, value in slowness.items():
            breaker.succeeded(replica, value, now)


# Failures


def test_a_replica_that_nothing_is_known_of_is_closed():
    assert Breaker().allows("a", 0)
    assert Breaker().state("a", 0) == "closed"


def test_failures_in_a_row_open_it():
    breaker = Breaker()
    for _ in range(FAILURES - 1):
        breaker.failed("a", 0)
    assert breaker.allows("a", 0)
    breaker.failed("a", 0)
    assert breaker.state("a", 0) == "open"
    assert not breaker.allows("a", 0)
    assert breaker.allows("b", 0)
    assert breaker.shunned(0) == {"a"}


def test_a_success_between_them_starts_the_count_again():
    breaker = Breaker()
    for _ in range(10):
        for _ in range(FAILURES - 1):
            breaker.failed("a", 0)
        breaker.succeeded("a", 1, 0)
    assert breaker.state("a", 0) == "closed"


def test_all_may_fail():
    breaker = Breaker()
    for replica in REPLICAS:
        fail(breaker, replica, 0)
    assert not any(breaker.allows(replica, 0) for replica in REPLICAS)


# Probes


def test_after_the_pause_one_request_at_a_time_is_let_through():
    breaker = Breaker()
    fail(breaker, "a", 10)
    assert not breaker.allows("a", 10 + FIRST_PAUSE - 0.01)
    assert breaker.state("a", 10 + FIRST_PAUSE) == "half_open"
    assert breaker.allows("a", 10 + FIRST_PAUSE)
    breaker.began("a", 10 + FIRST_PAUSE)
    assert not breaker.allows("a", 10 + FIRST_PAUSE)


def test_a_success_closes_it():
    breaker = Breaker()
    fail(breaker, "a", 0)
    breaker.began("a", 2)
    breaker.succeeded("a", 1, 3)
    assert breaker.state("a", 3) == "closed"
    assert breaker.allows("a", 3)


def test_one_more_failure_opens_it_for_twice_as_long_and_at_most_for_the_longest_pause():
    breaker, now, pauses = Breaker(), 0.0, []
    fail(breaker, "a", now)
    for _ in range(12):
        opened = now
        while not breaker.allows("a", now):
            now += FIRST_PAUSE / 2
        pauses.append(now - opened)
        breaker.began("a", now)
        breaker.failed("a", now)
    assert pauses[:4] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE, 8 * FIRST_PAUSE]
    assert max(pauses) == pauses[-1] == MAX_PAUSE


def test_a_probe_without_a_verdict_is_given_up():
    breaker = Breaker()
    fail(breaker, "a", 0)
    breaker.began("a", 5)
    assert not breaker.allows("a", 5 + PROBE_SECONDS - 0.01)
    assert breaker.allows("a", 5 + PROBE_SECONDS)


def test_what_was_under_way_when_it_opened_changes_nothing():
    breaker = Breaker()
    fail(breaker, "a", 0)
    for _ in range(20):
        breaker.failed("a", FIRST_PAUSE / 2)
        breaker.succeeded("a", 1, FIRST_PAUSE / 2)
    assert not breaker.allows("a", FIRST_PAUSE / 2)
    assert breaker.allows("a", FIRST_PAUSE)


@pytest.mark.parametrize(("closed_for", "pause"), [(1, 2 * FIRST_PAUSE), (CALM_SECONDS + 1, FIRST_PAUSE)])
def test_one_that_opens_again_soon_is_left_alone_for_longer(closed_for, pause):
    breaker = Breaker()
    fail(breaker, "a", 0)
    breaker.succeeded("a", 1, 2)
    fail(breaker, "a", 2 + closed_for)
    assert not breaker.allows("a", 2 + closed_for + pause - 0.01)
    assert breaker.allows("a", 2 + closed_for + pause)


def test_who_comes_back_is_not_charged_with_the_past():
    breaker = Breaker()
    fail(breaker, "a", 0)
    breaker.forget("a")
    breaker.forget("never seen")
    assert breaker.state("a", 0) == "closed"
    fail(breaker, "a", 0)
    assert breaker.allows("a", FIRST_PAUSE)


# Latency


def test_latency_far_off_the_peers_opens_it():
    breaker = Breaker()
    answer(breaker, {"a": 1.0, "b": 1.2, "c": 0.9, "d": 12.0}, 0)
    assert [breaker.state(replica, 0) for replica in REPLICAS] == ["closed"] * 3 + ["open"]


def test_what_slows_all_down_opens_none():
    breaker = Breaker()
    answer(breaker, {"a": 10.0, "b": 12.0, "c": 9.0, "d": 20.0}, 0)
    assert all(breaker.state(replica, 0) == "closed" for replica in REPLICAS)


def test_a_few_slow_answers_are_no_verdict():
    breaker = Breaker()
    answer(breaker, dict.fromkeys(REPLICAS, 1.0), 0)
    answer(breaker, {"d": 100.0}, 0, times=SAMPLES // 2)
    assert breaker.state("d", 0) == "closed"
    answer(breaker, {"d": 100.0}, 0, times=1)
    assert breaker.state("d", 0) == "open"


def test_it_takes_two_peers_of_which_something_is_known():
    breaker = Breaker()
    answer(breaker, {"a": 1.0, "d": 100.0}, 0)
    answer(breaker, {"b": 1.0}, 0, times=SAMPLES - 1)
    answer(breaker, {"d": 100.0}, 0)
    assert breaker.state("d", 0) == "closed"
    answer(breaker, {"b": 1.0}, 0, times=1)
    answer(breaker, {"d": 100.0}, 0, times=1)
    assert breaker.state("d", 0) == "open"


def test_peers_that_have_been_silent_for_long_are_no_measure():
    breaker = Breaker()
    answer(breaker, {"a": 1.0, "b": 1.0}, 0)
    answer(breaker, {"d": 100.0}, SAMPLE_SECONDS + 1)
    assert breaker.state("d", SAMPLE_SECONDS + 1) == "closed"


def test_a_probe_as_slow_as_before_does_not_close_it():
    breaker = Breaker()
    answer(breaker, {"a": 1.0, "b": 1.0, "d": 100.0}, 0)
    breaker.began("d", 2)
    breaker.succeeded("d", 100.0, 3)
    assert breaker.state("d", 3) == "open"
    breaker.succeeded("d", 1.0, 30)
    assert breaker.state("d", 30) == "closed"


# What holds whatever happens

whos = st.sampled_from(REPLICAS)
waits = st.floats(0, 100)
answers = st.tuples(st.just("succeeded"), whos, st.sampled_from([0.1, 1.0, 5.0, 1000.0]), waits)
failures = st.tuples(st.just("failed"), whos, waits)
requests = st.tuples(st.just("began"), whos, waits)
bursts = st.tuples(st.just("burst"), whos, st.sampled_from([0.1, 1.0, 5.0, 1000.0]), waits)


def play(breaker: Breaker, events) -> float:
    """Tell it of everything, in order; requests are sent only where it allows. Returns the time at the end."""
    now = 0.0
    for act, replica, *slowness, wait in events:
        now += wait / 100
        if act == "burst":
            answer(breaker, {replica: slowness[0]}, now)
        elif act != "began" or breaker.allows(replica, now):
            getattr(breaker, act)(replica, *slowness, now)
    return now


@given(st.lists(st.one_of(answers, failures, failures, requests, bursts), max_size=60))
def test_sooner_or_later_every_replica_is_tried_again(events):
    breaker = Breaker()
    now = play(breaker, events)
    later = now + max(MAX_PAUSE, PROBE_SECONDS) + 1e-6  # rounding
    for replica in REPLICAS:
        assert breaker.allows(replica, later)
        if breaker.state(replica, later) == "half_open":
            breaker.began(replica, later)
            breaker.succeeded(replica, 0.0, later)
            assert breaker.state(replica, later) == "closed"


@given(st.lists(st.one_of(answers, failures, failures, bursts), max_size=60), waits, st.floats(0, PROBE_SECONDS - 1))
def test_there_is_never_more_than_one_probe(events, wait, gap):
    breaker = Breaker()
    now = play(breaker, events) + wait
    for replica in REPLICAS:
        if breaker.state(replica, now) == "half_open":
            assert breaker.allows(replica, now)
            breaker.began(replica, now)
            assert not breaker.allows(replica, now + gap)


@given(st.lists(st.one_of(answers, bursts, bursts), max_size=80))
def test_latency_alone_always_leaves_two_closed(events):
    breaker = Breaker()
    for end in range(len(events) + 1):
        breaker = Breaker()
        now = play(breaker, events[:end])
        assert sum(breaker.state(replica, now) == "closed" for replica in REPLICAS) >= 2
