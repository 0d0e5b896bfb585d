"""Whether a replica would begin soon with one more request.

What waits should wait in the gateways, where it can still be chosen who goes next. But an engine must not run dry
between two load reports, so a little may wait there as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf

from cluster.router.cost import UNMEASURED_PREFILL_RATE, ttft_seconds
from cluster.router.load import ReplicaLoad

SPARE_SHARE = 16  # one request in so many of a full batch may wait in the engine, and one more
BACKLOG_SECONDS = 0.1  # of prompts to be computed


class Room:
    """All replicas of a model, by the loads that are known of them and the requests that this gateway has there; each
    computes `max_running` requests at once at most."""

    def __init__(self, loads: Mapping[str, ReplicaLoad], num_guests: Callable[[str], int], max_running: int) -> None:
        self._loads = loads
        self._num_guests = num_guests
        self._max_running = max_running

    @property
    def num_replicas(self) -> int:
        return len(self._loads)

    def has_room(self) -> bool:
        return any(has_room(load, self._num_guests(name), self._max_running) for name, load in self._loads.items())

    def best_ttft(self, num_tokens: int) -> float:
        """Time to first token of a prompt of which nothing is cached, where it would be shortest; infinite if there is
        no replica."""
        return min((_ttft(load, num_tokens) for load in self._loads.values()), default=inf)


def has_room(load: ReplicaLoad, num_guests: int, max_running: int) -> bool:
    """`num_guests` requests of this gateway are there, of which the last report may not count all. `max_running` are
    computed at once at most."""
    spare = max_running // SPARE_SHARE + 1
    if load.report.waiting >= spare or max(num_guests, load.running) >= max_running + spare:
        return False
    rate = load.report.prefill_rate or UNMEASURED_PREFILL_RATE
    return load.queued_tokens <= rate * max(BACKLOG_SECONDS, 2 * load.report.step_seconds)


def _ttft(load: ReplicaLoad, num_tokens: int) -> float:
    """No step is under way where nothing runs, however long steps were before."""
    return ttft_seconds(load, num_tokens) - (0.0 if load.running else load.report.step_seconds)
