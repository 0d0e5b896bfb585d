"""What one gateway knows of a replica's work: the last load report, and what it has sent there since."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from replicas.messages import LoadReport


@dataclass(frozen=True, slots=True)
class Booking:
    """A request on its way to a replica whose load report does not count it yet. `new_blocks` are KV blocks."""

    prefill_tokens: int
    new_blocks: int


@dataclass(slots=True)
class ReplicaLoad:
    """Requests are booked when they are placed, and their bookings go when a report counts them, when their first
    token comes, or when they end, whichever is first. So sixteen siblings that arrive at once do not all see the
    same idle replica. `coming` holds the block keys of prompts that have no first token yet: what is computed of them
    will be there for those who come after them. `churn` is the blocks that the replica stored lately."""

    report: LoadReport = field(default_factory=LoadReport)
    bookings: dict[str, Booking] = field(default_factory=dict)
    booked_tokens: int = 0
    booked_blocks: int = 0
    coming: dict[str, Sequence[bytes]] = field(default_factory=dict)
    churn: float = 0.0

    def book(self, request_id: str, booking: Booking, block_keys: Sequence[bytes] = ()) -> None:
        self.bookings[request_id] = booking
        self.booked_tokens += booking.prefill_tokens
        self.booked_blocks += booking.new_blocks
        self.coming[request_id] = block_keys

    def counted(self, request_id: str) -> None:
        """A load report counts this request."""
        booking = self.bookings.pop(request_id, None)
        if booking is None:
            return
        self.booked_tokens -= booking.prefill_tokens
        self.booked_blocks -= booking.new_blocks

    def settle(self, request_id: str) -> None:
        """Its first token came, or it ended."""
        self.counted(request_id)
        self.coming.pop(request_id, None)

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens that are computed before those of a request that is sent now."""
        return self.report.waiting_prefill_tokens + self.booked_tokens

    @property
    def running(self) -> int:
        return self.report.running + self.report.waiting + len(self.bookings)

    @property
    def free_blocks(self) -> int:
        return self.report.kv_blocks_free - self.booked_blocks


def common_blocks(keys: Sequence[bytes], others: Sequence[bytes]) -> int:
    """Length of the longest common prefix of two chains of block keys, by bisection: chained keys that are equal say
    that all before them are."""
    low, high = 0, min(len(keys), len(others))
    while low < high:
        middle = (low + high + 1) // 2
        if keys[middle - 1] == others[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
