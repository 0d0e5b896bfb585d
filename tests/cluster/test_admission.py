"""A request is refused exactly when it would find no room or come too late, and is told when to come again."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cluster.admission import HEADROOM, Outlook, ReleaseRate, judge, time_allowed

CALM = Outlook(tokens=100, key_tokens=0, free_tokens=1000, passed=0.0, wait=0.0, ttft=0.1, own_prefill=0.05)
seconds = st.floats(0, 10)
outlooks = st.builds(
    Outlook,
    tokens=st.integers(1, 2000),
    key_tokens=st.integers(0, 2000),
    free_tokens=st.integers(1, 1000),
    passed=seconds,
    wait=seconds,
    ttft=seconds,
    own_prefill=seconds,
)


def test_in_calm_everybody_is_taken():
    assert judge(CALM, 1.0, inf) is None
    assert judge(CALM, None, inf) is None


def test_a_full_queue_takes_no_more():
    refusal = judge(replace(CALM, free_tokens=50), None, rate=25.0)
    assert (refusal.reason, refusal.retry_after) == ("queue_full", 2.0)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 20)), max_size=200))
def test_a_key_takes_no_more_than_is_left_for_others(arrivals):
    """Whoever comes, in whatever order: the queue is never over its bound, and a key that has nothing in it finds a
    place for one request."""
    waiting = dict.fromkeys("abcd", 0)
    for key, tokens in [*arrivals, ("d", 20)]:
        free = 1000 - sum(waiting.values()) - tokens
        if judge(replace(CALM, tokens=tokens, key_tokens=waiting[key], free_tokens=free), None, 1.0) is None:
            waiting[key] += tokens
    assert sum(waiting.values()) <= 1000
    assert waiting["d"] == 20
    assert max(waiting.values()) <= 500


def test_who_would_be_late_is_told_how_late():
    refusal = judge(replace(CALM, wait=3.0, passed=0.2), 1.0, rate=100.0)
    assert refusal.reason == "deadline"
    assert refusal.retry_after == pytest.approx(3.0 / HEADROOM + 0.1 + 0.2 - 1.0)


def test_without_an_objective_nobody_is_late():
    assert judge(replace(CALM, wait=1e9), None, rate=1.0) is None


def test_a_prompt_too_long_for_any_replica_is_not_refused_for_ever():
    long = replace(CALM, ttft=5.05, own_prefill=5.0)
    assert judge(long, 1.0, inf) is None
    assert judge(replace(long, wait=1.0), 1.0, inf) is not None


@given(outlooks, st.none() | st.floats(0.1, 10), st.floats(1, 1e6))
def test_after_the_time_told_it_is_taken(outlook, objective, rate):
    """Were nobody else to come: a second attempt finds the queue, and then the replica, with so much less to do."""
    assume(outlook.own_prefill <= outlook.ttft)
    refusal = judge(outlook, objective, rate)
    assume(refusal is not None)
    pause = refusal.retry_after * 1.001 + 1e-6
    again = replace(
        outlook,
        passed=0.0,
        free_tokens=outlook.free_tokens + int(pause * rate) + 1,
        wait=max(0.0, outlook.wait - pause),
        ttft=max(outlook.own_prefill, outlook.ttft - max(0.0, pause - outlook.wait)),
    )
    second = judge(again, objective, rate)
    assert second is None or second.reason != refusal.reason


@given(outlooks, st.floats(0.1, 10))
def test_an_idle_replica_refuses_nobody_for_the_time(outlook, objective):
    """Whatever its prompt takes, nothing better will come of asking again."""
    idle = replace(outlook, passed=0.0, wait=0.0, ttft=outlook.own_prefill, key_tokens=0, free_tokens=10**6)
    assert judge(idle, objective, inf) is None


@given(st.floats(0.1, 10), st.floats(0, 20))
def test_the_time_allowed_is_never_less_than_the_objective(objective, own_prefill):
    allowed = time_allowed(objective, own_prefill)
    assert allowed >= objective
    assert allowed - own_prefill >= objective / 2


class TestReleaseRate:
    def test_before_anything_has_waited_everything_seems_possible(self):
        rate = ReleaseRate()
        rate.advance(10.0, waited=False)
        assert rate.per_second(100) == inf

    def test_as_long_as_nothing_leaves_it_can_only_be_slower(self):
        rate = ReleaseRate()
        rate.advance(0.0, waited=False)
        told = []
        for now in (0.1, 0.2, 1.0):
            rate.advance(now, waited=True)
            told.append(rate.per_second(100))
        assert told == [pytest.approx(100 / now, rel=0.2) for now in (0.1, 0.2, 1.0)]

    @given(st.floats(1, 1e5), st.floats(0.005, 0.1))
    def test_a_steady_flow_is_measured(self, true_rate, interval):
        rate, now = ReleaseRate(), 0.0
        while now < 10:
            now += interval
            rate.advance(now, waited=True)
            rate.add(true_rate * interval)
        assert rate.per_second(1) == pytest.approx(true_rate, rel=0.06)

    def test_times_in_which_nothing_waited_do_not_count(self):
        rate, now = ReleaseRate(), 0.0
        for step in range(2000):
            now += 0.01
            is_busy = step // 100 % 2 == 0
            rate.advance(now, waited=is_busy)
            if is_busy:
                rate.add(10)
        assert rate.per_second(1) == pytest.approx(1000, rel=0.05)

    def test_it_follows_a_change_within_seconds(self):
        rate, now = ReleaseRate(), 0.0
        for step in range(2000):
            now += 0.01
            rate.advance(now, waited=True)
            rate.add(10 if step < 1000 else 50)
        assert rate.per_second(1) == pytest.approx(5000, rel=0.05)

    def test_after_a_long_rest_nothing_is_believed_any_more(self):
        """Else a rate that was measured too low would keep everybody out, and so never be measured again."""
        rate = ReleaseRate()
        for now in range(1, 100):
            rate.advance(now, waited=True)
            rate.add(1)
        assert rate.per_second(100) == pytest.approx(33, rel=0.1)
        rate.advance(now + 30, waited=False)
        assert 60 < rate.per_second(100) < 120
        rate.advance(now + 1000, waited=False)
        assert rate.per_second(100) == inf
