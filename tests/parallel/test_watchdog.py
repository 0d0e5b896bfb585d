"""Watchdog and pulse over real sockets, in one process."""

from __future__ import annotations

import os
import queue
import socket
import time

import pytest

from parallel.channel import Channel, ChannelClosedError, accept_channels
from parallel.watchdog import Pulse, Watchdog

SILENCE = 1.0


def channel_pair() -> tuple[Channel, Channel]:
    ours, theirs = socket.socketpair()
    return Channel(ours), Channel(theirs)


class Failures(queue.SimpleQueue):
    """What a watchdog reports."""

    def __call__(self, reason, stacks):
        self.put((reason, stacks))


@pytest.fixture
def failures():
    return Failures()


def test_a_rank_whose_connection_ends_has_died(failures):
    ours, theirs = channel_pair()
    Watchdog({3: ours}, failures, SILENCE)
    theirs.close()
    reason, stacks = failures.get(timeout=1)
    assert reason == "rank 3 has died"
    assert "test_a_rank_whose_connection_ends" in stacks[0]


def test_a_silent_rank_is_reported_with_the_stacks_of_those_who_answer(failures):
    silent, _keep = channel_pair()
    answering, theirs = channel_pair()
    pulse = Pulse(theirs)
    Watchdog({1: silent, 2: answering}, failures, SILENCE)
    reason, stacks = failures.get(timeout=SILENCE + 1)
    assert reason.startswith("rank 1 has been silent for 1.")
    assert stacks.keys() == {0, 2}
    assert "Thread MainThread" in stacks[2]
    pulse.close()


def test_who_says_farewell_is_not_missed(failures):
    ours, theirs = channel_pair()
    watchdog = Watchdog({1: ours}, failures, SILENCE)
    pulse = Pulse(theirs)
    pulse.leave()
    pulse.close()
    watchdog.close()
    assert failures.empty()


def test_a_pulse_keeps_the_watchdog_quiet(failures):
    ours, theirs = channel_pair()
    pulse = Pulse(theirs)
    watchdog = Watchdog({1: ours}, failures, SILENCE)
    time.sleep(1.5 * SILENCE)
    assert failures.empty()
    pulse.leave()
    pulse.close()
    watchdog.close()


def test_a_pulse_ends_the_process_when_rank_0_is_gone(monkeypatch):
    statuses: queue.SimpleQueue[int] = queue.SimpleQueue()
    monkeypatch.setattr(os, "_exit", statuses.put)
    ours, theirs = channel_pair()
    Pulse(theirs)
    ours.close()
    assert statuses.get(timeout=2) == 71


def test_messages_arrive_whole_and_the_end_is_told():
    ours, theirs = channel_pair()
    ours.send(b"")
    ours.send(b"x" * 100_000)
    assert theirs.receive() == b""
    assert theirs.receive() == b"x" * 100_000
    assert not theirs.ready()
    ours.close()
    assert theirs.ready()
    with pytest.raises(ChannelClosedError):
        theirs.receive()


def test_strangers_are_turned_away_and_the_missing_are_named():
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    stranger = socket.create_connection(("127.0.0.1", port))
    stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
    known = Channel.connect("127.0.0.1", port, rank=1, purpose=0)
    with pytest.raises(TimeoutError, match=r"ranks \[2\] have not joined"):
        accept_channels(listener, range(1, 3), range(1), 0.5, lambda: None)
    listener.close()
    known.close()
    stranger.close()
