"""What is known of a replica's work: bookings come and go, once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cluster.router.load import Booking, ReplicaLoad, common_blocks
from replicas.messages import LoadReport


def test_a_booking_counts_until_a_report_does():
    load = ReplicaLoad(LoadReport(running=1, waiting_prefill_tokens=50, kv_blocks_free=100))
    load.book("a", Booking(1000, 20))
    assert (load.queued_tokens, load.running, load.free_blocks) == (1050, 2, 80)
    load.counted("a")
    load.counted("a")
    assert (load.queued_tokens, load.running, load.free_blocks) == (50, 1, 100)


def test_what_is_coming_comes_until_the_first_token():
    load = ReplicaLoad()
    load.book("a", Booking(1000, 20), (b"x", b"y"))
    load.counted("a")
    assert list(load.coming.values()) == [(b"x", b"y")]
    load.settle("a")
    load.settle("a")
    assert not load.coming
    assert load.queued_tokens == 0


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 20))
def test_the_common_prefix_is_found(shared, ours, theirs):
    keys = [f"shared {n}" for n in range(shared)]
    first, second = keys + [f"a {n}" for n in range(ours)], keys + [f"b {n}" for n in range(theirs)]
    assert common_blocks(first, second) == shared
    assert common_blocks(first, first) == len(first)
