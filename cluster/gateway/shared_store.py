"""Where the use of limits is counted: in this gateway's memory, or in a Redis that all gateways share.

While Redis cannot be reached each gateway counts for itself, so limits become laxer by the number of gateways, and
requests go on. It is said once in the log, counted in the metrics, and Redis is asked again after a pause.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable
from math import inf
from typing import Protocol, TypeVar

from limits import RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage, RedisStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter
from redis.asyncio import Redis
from redis.exceptions import RedisError

from cluster.gateway.windows import MINUTE, Window

log = logging.getLogger(__name__)

Result = TypeVar("Result")

TIMEOUT_SECONDS = 0.5
PAUSE_SECONDS = 5.0
PREFIX = "mobula"
LEASE_SECONDS = 900  # then a place that a dead gateway held is free again

# Drops leases that have ended; takes a place if there is one. Time is the server's, which all gateways share.
OCCUPY = """
local now = tonumber(redis.call('TIME')[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[1]) then return 0 end
redis.call('ZADD', KEYS[1], now + tonumber(ARGV[2]), ARGV[3])
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1
"""


class Store(Protocol):
    """Uses are counted in sliding minutes; a place is held from `occupy` to `vacate`."""

    async def take(self, key: str, limit: int, cost: int) -> bool:
        """Whether `cost` could be taken of what `key` may use in a minute. A negative cost gives back."""

    async def window(self, key: str, limit: int) -> Window: ...

    async def occupy(self, key: str, places: int, holder: str) -> bool:
        """Whether one of `key`'s places was free for `holder`."""

    async def vacate(self, key: str, holder: str) -> None: ...


class OwnStore:
    """In memory. Belongs to one event loop."""

    def __init__(self) -> None:
        self._windows = _Windows(MemoryStorage())
        self._places: defaultdict[str, set[str]] = defaultdict(set)

    async def take(self, key: str, limit: int, cost: int) -> bool:
        return await self._windows.take(key, limit, cost)

    async def window(self, key: str, limit: int) -> Window:
        return await self._windows.read(key, limit)

    async def occupy(self, key: str, places: int, holder: str) -> bool:
        if len(self._places[key]) >= places:
            return False
        self._places[key].add(holder)
        return True

    async def vacate(self, key: str, holder: str) -> None:
        self._places[key].discard(holder)


class RedisStore:
    """In Redis, or whatever speaks its protocol. Raises what its client raises."""

    def __init__(self, url: str) -> None:
        self._windows = _Windows(RedisStorage(f"async+{url}", implementation="redispy", key_prefix=PREFIX))
        self._redis = Redis.from_url(url)
        self._occupy = self._redis.register_script(OCCUPY)

    async def take(self, key: str, limit: int, cost: int) -> bool:
        return await self._windows.take(key, limit, cost)

    async def window(self, key: str, limit: int) -> Window:
        return await self._windows.read(key, limit)

    async def occupy(self, key: str, places: int, holder: str) -> bool:
        return bool(await self._occupy([f"{PREFIX}:places:{key}"], [places, LEASE_SECONDS, holder]))

    async def vacate(self, key: str, holder: str) -> None:
        await self._redis.zrem(f"{PREFIX}:places:{key}", holder)


class SharedStore:
    """Redis while it answers, else this gateway's own memory."""

    def __init__(self, url: str, on_fault: Callable[[], None], clock: Callable[[], float]) -> None:
        self._shared = RedisStore(url)
        self._own = OwnStore()
        self._on_fault = on_fault
        self._clock = clock
        self._ask_again = -inf
        self._reachable = True

    async def take(self, key: str, limit: int, cost: int) -> bool:
        return await self._try(lambda store: store.take(key, limit, cost))

    async def window(self, key: str, limit: int) -> Window:
        return await self._try(lambda store: store.window(key, limit))

    async def occupy(self, key: str, places: int, holder: str) -> bool:
        return await self._try(lambda store: store.occupy(key, places, holder))

    async def vacate(self, key: str, holder: str) -> None:
        await self._own.vacate(key, holder)
        await self._try(lambda store: store.vacate(key, holder))

    async def _try(self, work: Callable[[Store], Awaitable[Result]]) -> Result:
        if self._clock() < self._ask_again:
            return await work(self._own)
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                result = await work(self._shared)
        except (RedisError, OSError, TimeoutError) as error:
            self._ask_again = self._clock() + PAUSE_SECONDS
            self._on_fault()
            if self._reachable:
                log.warning("Redis cannot be reached (%s): each gateway counts limits by itself", type(error).__name__)
            self._reachable = False
            return await work(self._own)
        if not self._reachable:
            log.warning("Redis answers again: the gateways share their limits")
        self._reachable = True
        return result


class _Windows:
    """The use of limits in a storage of the library's."""

    def __init__(self, storage: MemoryStorage | RedisStorage) -> None:
        self._storage = storage
        self._limiter = SlidingWindowCounterRateLimiter(storage)

    async def take(self, key: str, limit: int, cost: int) -> bool:
        return await self._limiter.hit(RateLimitItemPerMinute(limit), key, cost=cost)

    async def read(self, key: str, limit: int) -> Window:
        name = RateLimitItemPerMinute(limit).key_for(key)
        previous, fading, current, lifetime = await self._storage.get_sliding_window(name, MINUTE)
        return Window(limit, previous, current, fading if previous else max(0.0, lifetime - MINUTE))
