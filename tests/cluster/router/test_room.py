"""A replica has room as long as it would begin soon; a little waits there, so that it does not run dry."""

from __future__ import annotations

from math import inf

import pytest

from cluster.router.load import Booking, ReplicaLoad
from cluster.router.room import Room
from replicas.messages import LoadReport
from tests.support.loads import put, table_of

MAX_RUNNING = 32  # and three may wait


def load(bookings=0, booked_tokens=0, **report):
    known = ReplicaLoad(LoadReport(**{"prefill_rate": 1000.0} | report))
    for number in range(bookings):
        known.book(str(number), Booking(booked_tokens, 1))
    return known


def has_room(known, guests):
    return Room(table_of(known), lambda name: guests, MAX_RUNNING).has_room()


@pytest.mark.parametrize(
    ("known", "answer"),
    [
        (load(), True),
        (load(running=31), True),
        (load(running=32, waiting=2), True),
        (load(running=32, waiting=3), False),
        (load(running=32, bookings=2), True),
        (load(running=32, bookings=3), False),
        (load(bookings=34), True),
        (load(bookings=35), False),
        (load(running=5, waiting=3), False),  # no room for their KV blocks
        (load(waiting_prefill_tokens=100), True),
        (load(waiting_prefill_tokens=101), False),
        (load(bookings=2, booked_tokens=60), False),
        (load(waiting_prefill_tokens=900, step_seconds=0.5), True),  # what one step of these computes
        (load(waiting_prefill_tokens=1001, step_seconds=0.5), False),
        (load(waiting_prefill_tokens=1000, prefill_rate=0.0), True),  # not measured yet
    ],
)
def test_one_replica(known, answer):
    assert has_room(known, guests=0) is answer


def test_requests_that_began_since_the_last_report_count():
    """Their bookings go with their first tokens, maybe before a report has them running."""
    assert has_room(load(), guests=34)
    assert not has_room(load(), guests=35)


def test_of_several_replicas_the_best_counts():
    loads = table_of(full=load(waiting=9), busy=load(waiting_prefill_tokens=500))
    room = Room(loads, lambda name: 0, MAX_RUNNING)
    assert not room.has_room()
    assert room.best_ttft(500) == pytest.approx(0.5)
    put(loads, "idle", load(step_seconds=0.4))
    assert room.has_room()
    assert room.best_ttft(100) == pytest.approx(0.1), "no step is under way there"
    put(loads, "full", load())
    assert room.best_ttft(200) == pytest.approx(0.2)
    for name in list(loads):
        loads.leave(name)
    assert (room.has_room(), room.best_ttft(1)) == (False, inf)
    put(loads, "busy", load(running=1, step_seconds=0.4))
    assert room.best_ttft(50) == pytest.approx(0.45)
