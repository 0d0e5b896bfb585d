"""Whether a replica would begin soon with one more request.

What waits should wait in the gateways, where it can still be chosen who goes next. But an engine must not run dry
between two load reports, so a little may wait there as well.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import numpy as np

from cluster.router.cost import ttft_seconds
from cluster.router.load_table import LoadTable

SPARE_SHARE = 16  # one request in so many of a full batch may wait in the engine, and one more
BACKLOG_SECONDS = 0.1  # of prompts to be computed


class Room:
    """All replicas of a model, by the loads that are known of them and the requests that this gateway has there; each
    computes `max_running` requests at once at most."""

    def __init__(self, loads: LoadTable, num_guests: Callable[[str], int], max_running: int) -> None:
        self._loads = loads
        self._num_guests = num_guests
        self._spare = max_running // SPARE_SHARE + 1
        self._most = max_running + self._spare

    @property
    def num_replicas(self) -> int:
        return len(self._loads)

    def has_room(self) -> bool:
        """The last reports may not count all requests of this gateway that are there."""
        loads = self._loads.columns
        backlog = loads.prefill_rate * np.maximum(BACKLOG_SECONDS, 2 * loads.step_seconds)
        is_free = (loads.waiting < self._spare) & (loads.running < self._most) & (loads.queued_tokens <= backlog)
        names = self._loads.names
        return any(self._num_guests(names[row]) < self._most for row in np.flatnonzero(is_free))

    def best_ttft(self, num_tokens: int) -> float:
        """Time to first token of a prompt of which nothing is cached, where it would be shortest; infinite if there is
        no replica. No step is under way where nothing runs, however long steps were before."""
        loads = self._loads.columns
        ttft = ttft_seconds(loads, num_tokens) - np.where(loads.running > 0, 0.0, loads.step_seconds)
        return float(ttft.min(initial=inf))
