"""Made-up loads, from a seed: chats whose turns repeat what was said before, and bursts of siblings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count
from random import Random

from deploy.errors import UserError
from deploy.simulate.load import Arrival
from replicas.kv.prefix import KEY_BYTES


@dataclass(frozen=True, slots=True)
class Amount:
    """How much of a load: `rate` requests a second on average, for `seconds`."""

    rate: float
    seconds: float
    block_size: int


def chats(amount: Amount, random: Random) -> list[Arrival]:
    """People who come at random, begin with one of a few system prompts and take some turns, a minute or so apart."""
    turns_kept, system_prompts = 0.75, [random.randrange(200, 4000) for _ in range(8)]
    arrivals = []
    for session, start in enumerate(_times(amount.rate * (1 - turns_kept), amount.seconds, random)):
        system = min(int(random.expovariate(0.7)), len(system_prompts) - 1)
        time, shared = start, system_prompts[system]
        length = shared
        while time < amount.seconds:
            length += 1 + int(random.lognormvariate(6, 1.2))
            answer = 1 + int(random.expovariate(1 / 200))
            keys = _keys(f"system {system}", f"session {session}", shared, length, amount.block_size)
            arrivals.append(Arrival(time, length, answer, keys, str(session)))
            if random.random() > turns_kept:
                break
            length += answer
            time += 5 + random.expovariate(1 / 60)
    return sorted(arrivals, key=lambda arrival: arrival.time)


def siblings(amount: Amount, random: Random) -> list[Arrival]:
    """Sixteen requests at once, again and again, whose prompts of some thousand tokens differ only at their ends."""
    size = 16
    arrivals = []
    for burst, time in enumerate(_times(amount.rate / size, amount.seconds, random)):
        shared = random.randrange(2000, 12000)
        for child in range(size):
            length = shared + random.randrange(20, 400)
            keys = _keys(f"burst {burst}", f"child {burst}.{child}", shared, length, amount.block_size)
            arrivals.append(Arrival(time, length, 1 + int(random.expovariate(1 / 200)), keys))
    return arrivals


LOADS: dict[str, Callable[[Amount, Random], list[Arrival]]] = {"chats": chats, "siblings": siblings}


def made_up(name: str, amount: Amount, random: Random) -> list[Arrival]:
    """The load of that name. Raises UserError."""
    if name not in LOADS:
        raise UserError(f"there is no load {name!r}; there are {', '.join(LOADS)}")
    return LOADS[name](amount, random)


def _times(rate: float, seconds: float, random: Random) -> Iterator[float]:
    """A Poisson process."""
    time = 0.0
    for _ in count():
        time += random.expovariate(rate)
        if time >= seconds:
            return
        yield time


def _keys(shared_name: str, own_name: str, shared: int, length: int, block_size: int) -> tuple[bytes, ...]:
    """Keys of a prompt whose first `shared` tokens are known by one name and whose others by another."""
    return tuple(
        _key(shared_name if (block + 1) * block_size <= shared else own_name, block)
        for block in range(length // block_size)
    )


def _key(name: str, block: int) -> bytes:
    return blake2b(f"{name} {block}".encode(), digest_size=KEY_BYTES).digest()
