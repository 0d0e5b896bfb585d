"""What a sliding minute has room for, and when: against a clock that ticks."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from cluster.gateway.windows import MINUTE, Window

windows = st.builds(
    Window,
    limit=st.integers(1, 1000),
    previous=st.integers(0, 1000),
    current=st.integers(0, 1000),
    seconds_left=st.floats(0.01, MINUTE),
)


def later(window: Window, seconds: float) -> Window:
    """The same window after some time in which nothing was used."""
    if seconds < window.seconds_left:
        return replace(window, seconds_left=window.seconds_left - seconds)
    into_next = seconds - window.seconds_left
    if into_next < MINUTE:
        return Window(window.limit, window.current, 0, MINUTE - into_next)
    return Window(window.limit, 0, 0, MINUTE)


@given(windows, st.integers(1, 1000))
def test_after_the_time_told_there_is_room_and_not_before(window, cost):
    assume(cost <= window.limit)
    seconds = window.seconds_until(cost)
    assert later(window, seconds + 0.01).remaining >= cost
    if seconds > 1:
        assert later(window, seconds - 1).remaining <= cost + max(window.previous, window.current) / MINUTE + 1
        assert later(window, 0).remaining < cost


@given(windows)
def test_after_the_reset_everything_is_free(window):
    assert later(window, window.reset_seconds + 0.001).remaining == window.limit


@given(windows)
def test_what_remains_lies_between_nothing_and_the_limit(window):
    assert 0 <= window.remaining <= window.limit
