"""NVIDIA Dynamo's default cost function, from its documentation, to be compared with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random

from cluster.router.index import PrefixIndex
from cluster.router.placement import Wish
from deploy.simulate.policies import MAX_INDEX_BLOCKS
from replicas.messages import LoadReport


@dataclass(frozen=True, slots=True)
class _Booked:
    replica: str
    prefill_tokens: int
    keys: Sequence[bytes]


class Dynamo:
    """Lowest (prompt tokens still to be computed there, this request's included) / block size + distinct KV blocks
    that requests there use, this one's included. Both are the router's own bookings: of the prompt until the first
    token, of the blocks until the end. Ties go to a random one of the best."""

    through_lead = False

    def __init__(self, random: Random, block_size: int) -> None:
        self._random = random
        self._block_size = block_size
        self._index = PrefixIndex(MAX_INDEX_BLOCKS)
        self._prefill_tokens: dict[str, int] = {}
        self._active: dict[str, Counter[bytes]] = {}
        self._booked: dict[str, _Booked] = {}

    def join(self, replica: str) -> None:
        self._index.add_holder(replica)
        self._prefill_tokens[replica] = 0
        self._active[replica] = Counter()

    def stored(self, replica: str, keys: Sequence[bytes]) -> None:
        self._index.store(replica, keys)

    def removed(self, replica: str, keys: Sequence[bytes]) -> None:
        self._index.remove(replica, keys)

    def observe(self, replica: str, load: LoadReport, now: float, taken: Iterable[str]) -> None:
        """Load reports are not used."""

    def choose(self, wish: Wish, now: float) -> str:
        matches = self._index.match(wish.block_keys)
        new_tokens, costs = {}, {}
        for replica, active in self._active.items():
            new_tokens[replica] = wish.num_tokens - matches.get(replica, 0) * self._block_size
            new_blocks = sum(key not in active for key in wish.block_keys)
            prefill_blocks = (self._prefill_tokens[replica] + new_tokens[replica]) / self._block_size
            costs[replica] = prefill_blocks + len(active) + new_blocks
        lowest = min(costs.values())
        chosen = self._random.choice([replica for replica, cost in costs.items() if cost == lowest])
        self._booked[wish.request_id] = _Booked(chosen, new_tokens[chosen], wish.block_keys)
        self._prefill_tokens[chosen] += new_tokens[chosen]
        self._active[chosen].update(wish.block_keys)
        return chosen

    def started(self, request_id: str) -> None:
        booked = self._booked[request_id]
        self._prefill_tokens[booked.replica] -= booked.prefill_tokens

    def ended(self, request_id: str) -> None:
        booked = self._booked.pop(request_id)
        active = self._active[booked.replica]
        for key in booked.keys:
            active[key] -= 1
            if not active[key]:
                del active[key]
