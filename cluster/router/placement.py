"""Where each request of one model should run, as one gateway sees it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp
from random import Random
from statistics import mean, median

import numpy as np

from cluster.router.coming import Coming
from cluster.router.cost import FleetFigures, cost_seconds, ttft_seconds
from cluster.router.index import PrefixIndex
from cluster.router.load import UNMEASURED_PREFILL_RATE, Booking
from cluster.router.load_table import Column, Loads, LoadTable
from replicas.messages import LoadReport

Rows = np.ndarray[tuple[int], np.dtype[np.intp]]

MAX_INDEX_BLOCKS = 10_000_000
MAX_SESSIONS = 100_000
NEAR_TIE_SECONDS, NEAR_TIE_SHARE = 0.002, 0.3
FLEET_SECONDS = 1.0  # how long what all replicas have in common is taken for unchanged
CHURN_SECONDS = 300.0  # what a replica stored longer ago hardly counts
CROWD_SHARE, CROWD_REQUESTS = 1.5, 2
SESSION_SECONDS = 0.01  # what it may cost at most to stay with a session's replica


@dataclass(frozen=True, slots=True)
class Wish:
    """What placement must know of a request: the keys of its full KV blocks, its tokens so far, how many may follow,
    its session, and the replicas that have failed it."""

    request_id: str
    block_keys: Sequence[bytes]
    num_tokens: int
    max_tokens: int
    session: str | None = None
    avoid: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Choice:
    """A replica, the tokens of the prompt it holds already, and the time to first token to be expected there."""

    replica: str
    cached_tokens: int
    ttft_seconds: float


class Placement:
    """Fed with what the replicas report; asked once for each attempt of a request."""

    def __init__(self, block_size: int, random: Random, max_blocks: int = MAX_INDEX_BLOCKS) -> None:
        self._block_size = block_size
        self._random = random
        self._index = PrefixIndex(max_blocks)
        self._loads = LoadTable()
        self._coming = Coming()
        self._placed: dict[str, str] = {}
        self._sessions: OrderedDict[str, str] = OrderedDict()
        self._fleet = FleetFigures()
        self._measured = float("-inf")
        self._asked = self._asked_by_all = self._asked_here = 0.0

    @property
    def replicas(self) -> list[str]:
        return list(self._loads)

    @property
    def loads(self) -> LoadTable:
        """What is known of the replicas that take requests; follows every change."""
        return self._loads

    def join(self, replica: str) -> None:
        """A replica takes requests from now on; nothing is known of its cache."""
        if replica not in self._loads:
            self._loads.join(replica)
            self._index.add_holder(replica)

    def leave(self, replica: str) -> None:
        """A replica takes no more requests, and is forgotten."""
        if replica in self._loads:
            self._loads.leave(replica)
            self._coming.forget(replica)
            self._index.forget(replica)

    def stored(self, replica: str, keys: Sequence[bytes]) -> None:
        if replica in self._loads:
            self._index.store(replica, keys)
            self._loads.change(replica).churn += len(keys)

    def removed(self, replica: str, keys: Sequence[bytes]) -> None:
        if replica in self._loads:
            self._index.remove(replica, keys)

    def cleared(self, replica: str) -> None:
        """What the replica's cache holds is no longer known; a snapshot follows."""
        if replica in self._loads:
            self._index.forget(replica)
            self._index.add_holder(replica)

    def observe(self, replica: str, load: LoadReport, now: float, taken: Iterable[str] = ()) -> None:
        """A load report; it counts the requests `taken` in since the last one, so their bookings go."""
        if replica not in self._loads:
            return
        known = self._loads.change(replica)
        if load.kv_blocks_total != known.report.kv_blocks_total:
            others = sum(other.report.kv_blocks_total for other in self._loads.values() if other is not known)
            self._index.reserve(others + load.kv_blocks_total)
        known.report = load
        for request_id in taken:
            known.counted(request_id)

    def place(self, wish: Wish, now: float) -> Choice | None:
        """The replica with the lowest cost; the request is booked there. None if there is no replica but those to
        avoid."""
        if not self._loads:
            return None
        if now >= self._measured + FLEET_SECONDS:
            self._measure_fleet(now)
        loads = self._loads.columns
        takers = self._takers(wish.avoid, loads)
        if not len(takers):
            return None
        uncached = self._uncached(wish)
        costs = cost_seconds(loads, uncached, self._fleet)
        if (home := self._sessions.get(wish.session or "")) in self._loads.rows:
            costs[self._loads.rows[home]] -= SESSION_SECONDS
        row = self._choose(takers, costs, loads)
        choice = Choice(
            replica=self._loads.names[row],
            cached_tokens=wish.num_tokens - int(uncached[row]),
            ttft_seconds=float(ttft_seconds(loads, uncached)[row]),
        )
        self._asked_here += wish.num_tokens
        self._book(wish, choice)
        return choice

    def move(self, wish: Wish, choice: Choice) -> bool:
        """Book a request elsewhere than it was placed, if that replica takes requests."""
        if choice.replica not in self._loads:
            return False
        self._book(wish, choice)
        return True

    def settle(self, request_id: str) -> None:
        """The request's first token came, or it ended."""
        replica = self._placed.pop(request_id, None)
        self._coming.remove(request_id)
        if replica is not None and replica in self._loads:
            self._loads.change(replica).counted(request_id)

    def _takers(self, avoid: frozenset[str], loads: Loads) -> Rows:
        """Those that run no more than half as many requests again as all do on average, and two. Costs are what was
        measured and foreseen; this bounds what a failure, or a mistake of theirs, can put on one replica."""
        rows = np.arange(len(self._loads))
        if avoid:
            rows = np.delete(rows, [self._loads.rows[replica] for replica in avoid if replica in self._loads])
        running = loads.running[rows]
        takers: Rows = rows[running < CROWD_SHARE * running.sum() / max(len(rows), 1) + CROWD_REQUESTS]
        return takers

    def _choose(self, takers: Rows, costs: Column, loads: Loads) -> int:
        """One of those whose costs are hardly above the lowest: the one with the fewest requests of two at random.
        Other gateways see the same costs at the same moment, and where all took the lowest they would meet; so the
        larger their part of all requests is, the more counts as hardly above."""
        share = NEAR_TIE_SHARE * self._others_share
        limit = costs[takers].min() * (1 + share) + NEAR_TIE_SECONDS
        near = takers[costs[takers] <= limit].tolist()
        two: list[int] = self._random.sample(near, min(2, len(near)))
        return min(two, key=lambda row: loads.running[row])

    def _uncached(self, wish: Wish) -> Column:
        """Tokens to be computed on each replica: all but those in blocks that it has or is about to have, and at least
        the last one."""
        blocks, rows = np.zeros(len(self._loads)), self._loads.rows
        for replica, stored in self._index.match(wish.block_keys).items():
            blocks[rows[replica]] = stored
        for replica, coming in self._coming.match(wish.block_keys).items():
            blocks[rows[replica]] = max(blocks[rows[replica]], coming)
        most = (wish.num_tokens - 1) // self._block_size
        return wish.num_tokens - np.minimum(blocks, most) * self._block_size

    @property
    def _others_share(self) -> float:
        """The share of all prompt tokens that other gateways send to these replicas."""
        return max(0.0, 1 - self._asked_here / self._asked_by_all) if self._asked_by_all else 0.0

    def _measure_fleet(self, now: float) -> None:
        """What the replicas have in common, by their reports of about now. Churn of long ago is forgotten."""
        kept = exp((self._measured - now) / CHURN_SECONDS)
        self._measured = now
        loads = [self._loads.change(replica) for replica in self._loads]
        for load in loads:
            load.churn *= kept
        rates = [load.report.prefill_rate for load in loads if load.report.prefill_rate]
        asked = sum(load.report.prefix_query_tokens_total for load in loads)
        self._asked_here *= kept
        self._asked_by_all = self._asked_by_all * kept + max(asked - self._asked, 0)
        self._asked = asked
        found = sum(load.report.prefix_hit_tokens_total for load in loads)
        self._fleet = FleetFigures(
            prefill_rate=median(rates) if rates else UNMEASURED_PREFILL_RATE,
            hit_rate=found / asked if asked else 0.0,
            churn=mean(load.churn for load in loads),
            decode_step_seconds=min(load.report.decode_step_seconds for load in loads),
        )

    def _book(self, wish: Wish, choice: Choice) -> None:
        uncached = wish.num_tokens - choice.cached_tokens
        blocks = -(-(uncached + wish.max_tokens) // self._block_size)
        self.settle(wish.request_id)
        self._placed[wish.request_id] = choice.replica
        self._loads.change(choice.replica).book(wish.request_id, Booking(uncached, blocks))
        self._coming.add(wish.request_id, choice.replica, wish.block_keys)
        if wish.session is None:
            return
        self._sessions[wish.session] = choice.replica
        self._sessions.move_to_end(wish.session)
        if len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
