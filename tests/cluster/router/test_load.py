"""What is known of a replica's work: bookings come and go, once."""

from __future__ import annotations

from cluster.router.load import Booking, ReplicaLoad
from replicas.messages import LoadReport


def test_a_booking_counts_until_a_report_does():
    load = ReplicaLoad(LoadReport(running=1, waiting_prefill_tokens=50, kv_blocks_free=100))
    load.book("a", Booking(1000, 20))
    assert (load.queued_tokens, load.running, load.free_blocks) == (1050, 2, 80)
    load.counted("a")
    load.counted("a")
    assert (load.queued_tokens, load.running, load.free_blocks) == (50, 1, 100)
