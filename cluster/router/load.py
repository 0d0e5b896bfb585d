"""What one gateway knows of a replica's work: the last load report, and what it has sent there since."""

from __future__ import annotations

from dataclasses import dataclass, field

from replicas.messages import LoadReport

UNMEASURED_PREFILL_RATE = 10_000.0  # tokens/s, until a replica has measured its own


@dataclass(frozen=True, slots=True)
class Booking:
    """A request on its way to a replica whose load report does not count it yet. `new_blocks` are KV blocks."""

    prefill_tokens: int
    new_blocks: int


@dataclass(slots=True)
class ReplicaLoad:
    """Requests are booked when they are placed, and their bookings go when a report counts them, when their first
    token comes, or when they end, whichever is first. So sixteen siblings that arrive at once do not all see the
    same idle replica. `churn` is the blocks that the replica stored lately."""

    report: LoadReport = field(default_factory=LoadReport)
    bookings: dict[str, Booking] = field(default_factory=dict)
    booked_tokens: int = 0
    booked_blocks: int = 0
    churn: float = 0.0

    def book(self, request_id: str, booking: Booking) -> None:
        self.bookings[request_id] = booking
        self.booked_tokens += booking.prefill_tokens
        self.booked_blocks += booking.new_blocks

    def counted(self, request_id: str) -> None:
        """A load report counts this request, or it is over."""
        booking = self.bookings.pop(request_id, None)
        if booking is None:
            return
        self.booked_tokens -= booking.prefill_tokens
        self.booked_blocks -= booking.new_blocks

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens that are computed before those of a request that is sent now."""
        return self.report.waiting_prefill_tokens + self.booked_tokens

    @property
    def queued(self) -> int:
        """Requests that wait, or are on their way."""
        return self.report.waiting + len(self.bookings)

    @property
    def running(self) -> int:
        """All requests there."""
        return self.report.running + self.queued

    @property
    def free_blocks(self) -> int:
        return self.report.kv_blocks_free - self.booked_blocks

    @property
    def prefill_rate(self) -> float:
        return self.report.prefill_rate or UNMEASURED_PREFILL_RATE
