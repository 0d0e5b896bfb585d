"""Ways to choose a replica. Each gateway has one of its own and tells it all that it learns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import Protocol

from cluster.router.index import PrefixIndex
from cluster.router.placement import Placement, Wish
from replicas.messages import LoadReport

MAX_INDEX_BLOCKS = 10_000_000


class Policy(Protocol):
    """The views of the replicas in, a replica out. Several gateways place each for itself, or all `through_lead`."""

    through_lead: bool

    def join(self, replica: str) -> None: ...

    def stored(self, replica: str, keys: Sequence[bytes]) -> None: ...

    def removed(self, replica: str, keys: Sequence[bytes]) -> None: ...

    def observe(self, replica: str, load: LoadReport, now: float, taken: Iterable[str]) -> None: ...

    def choose(self, wish: Wish, now: float) -> str: ...

    def started(self, request_id: str) -> None:
        """Its first token came."""

    def ended(self, request_id: str) -> None: ...


class Blind:
    """Knows who is there and how many of its own requests run where: the base of the simple policies."""

    through_lead = False

    def __init__(self, random: Random) -> None:
        self.random = random
        self.outstanding: dict[str, int] = {}
        self.placed: dict[str, str] = {}

    def join(self, replica: str) -> None:
        self.outstanding[replica] = 0

    def stored(self, replica: str, keys: Sequence[bytes]) -> None:
        """Nothing is made of it."""

    def removed(self, replica: str, keys: Sequence[bytes]) -> None:
        """Nothing is made of it."""

    def observe(self, replica: str, load: LoadReport, now: float, taken: Iterable[str]) -> None:
        """Nothing is made of it."""

    def choose(self, wish: Wish, now: float) -> str:
        replica = self.pick(wish)
        self.placed[wish.request_id] = replica
        self.outstanding[replica] += 1
        return replica

    def pick(self, wish: Wish) -> str:
        raise NotImplementedError

    def started(self, request_id: str) -> None:
        """Nothing is made of it."""

    def ended(self, request_id: str) -> None:
        self.outstanding[self.placed.pop(request_id)] -= 1

    def least_loaded(self, replicas: Iterable[str]) -> str:
        replicas = list(replicas)
        least = min(self.outstanding[replica] for replica in replicas)
        return self.random.choice([replica for replica in replicas if self.outstanding[replica] == least])


class RandomChoice(Blind):
    def pick(self, wish: Wish) -> str:
        return self.random.choice(list(self.outstanding))


class RoundRobin(Blind):
    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._turn = 0

    def pick(self, wish: Wish) -> str:
        replicas = list(self.outstanding)
        self._turn = (self._turn + 1) % len(replicas)
        return replicas[self._turn]


class PowerOfTwo(Blind):
    """The less loaded of two at random (Mitzenmacher, 2001); what Ray Serve does."""

    def pick(self, wish: Wish) -> str:
        replicas = list(self.outstanding)
        return self.least_loaded(self.random.sample(replicas, min(2, len(replicas))))


class PrefixAffinity(Blind):
    """SGLang's rule: balance when loads are far apart, else follow a long enough match, else take the least loaded.
    It is given an exact index here, which it has not at home."""

    FAR_APART, TIMES, LONG_ENOUGH = 64, 1.5, 0.3

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._index = PrefixIndex(MAX_INDEX_BLOCKS)

    def join(self, replica: str) -> None:
        super().join(replica)
        self._index.add_holder(replica)

    def stored(self, replica: str, keys: Sequence[bytes]) -> None:
        self._index.store(replica, keys)

    def removed(self, replica: str, keys: Sequence[bytes]) -> None:
        self._index.remove(replica, keys)

    def pick(self, wish: Wish) -> str:
        most, least = max(self.outstanding.values()), min(self.outstanding.values())
        if most - least > self.FAR_APART and most > self.TIMES * least:
            return self.least_loaded(self.outstanding)
        matches = self._index.match(wish.block_keys)
        longest = max(matches.values(), default=0)
        if longest > self.LONG_ENOUGH * len(wish.block_keys):
            return self.least_loaded(replica for replica, blocks in matches.items() if blocks == longest)
        return self.least_loaded(self.outstanding)


class Mobula:
    """Ours."""

    through_lead = True

    def __init__(self, random: Random, block_size: int) -> None:
        self._placement = Placement(block_size, random)
        self.join = self._placement.join
        self.stored = self._placement.stored
        self.removed = self._placement.removed
        self.observe = self._placement.observe
        self.started = self.ended = self._placement.settle

    def choose(self, wish: Wish, now: float) -> str:
        choice = self._placement.place(wish, now)
        assert choice is not None, "there is no replica"
        return choice.replica
