"""What each key may use: requests and tokens per minute, and requests at the same time.

A request's tokens are not known when it comes, so as many are reserved as it may use, its prompt's and its
`max_tokens`; when it has ended, what it did not use is given back.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Literal

from cluster.gateway.caller import Caller
from cluster.gateway.errors import bad_request, too_many_requests
from cluster.gateway.shared_store import OwnStore, SharedStore, Store
from cluster.gateway.windows import MINUTE, Window
from cluster.metrics import UNKNOWN_MODEL, GatewayMetrics

Unit = Literal["requests", "tokens"]

# OpenAI's
RATE_HEADERS = [
    f"x-ratelimit-{name}-{unit}" for unit in ("requests", "tokens") for name in ("limit", "remaining", "reset")
]


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """None: no limit. `most_urgent` is the lowest priority number that counts."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None
    most_urgent: int | None = None


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """`by_name` holds the limits of those keys that have their own; `redis_url` None counts in each gateway alone."""

    default: KeyLimits = KeyLimits()
    by_name: Mapping[str, KeyLimits] = field(default_factory=dict)
    redis_url: str | None = None


class RateLimits:
    """All keys' use of their limits."""

    def __init__(
        self, settings: LimitSettings, metrics: GatewayMetrics, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        url, on_fault = settings.redis_url, metrics.limit_store_faults.inc
        self._store: Store = OwnStore() if url is None else SharedStore(url, on_fault, clock)

    async def admit(self, caller: Caller) -> None:
        """Count one request, which holds its place until the caller leaves. Raises ApiError 429."""
        limits = self._settings.by_name.get(caller.name, self._settings.default)
        caller.most_urgent = limits.most_urgent
        if limits != KeyLimits():
            caller.permit = permit = RatePermit(caller, limits, self._store, self._metrics, self._clock)
            await permit.enter()


class RatePermit:
    """What one request holds of its key's limits."""

    def __init__(
        self, caller: Caller, limits: KeyLimits, store: Store, metrics: GatewayMetrics, clock: Callable[[], float]
    ) -> None:
        self._id = secrets.token_hex(8)
        self._caller = caller
        self._limits = limits
        self._store = store
        self._metrics = metrics
        self._clock = clock
        self._reserved = 0
        self._reserved_at = 0.0

    async def enter(self) -> None:
        """Take a place, and one of the minute's requests. Raises ApiError."""
        places = self._limits.concurrency
        if places is not None and not await self._store.occupy(self._caller.name, places, self._id):
            self._metrics.refusals.labels(UNKNOWN_MODEL, "concurrency").inc()
            raise too_many_requests(f"{self._caller.name} has {places} requests under way, which is its limit.", 1.0)
        await self._take("requests", self._limits.requests_per_minute, 1)

    async def reserve(self, tokens: int) -> None:
        """Take as many tokens as the request may use. Raises ApiError."""
        limit = self._limits.tokens_per_minute
        if limit is not None and tokens > limit:
            raise bad_request(
                f"The request may use {tokens} tokens, but {self._caller.name} may use {limit} a minute.", "max_tokens"
            )
        await self._take("tokens", limit, tokens)
        self._reserved, self._reserved_at = tokens, self._clock()

    async def close(self, used_tokens: int) -> None:
        """Leave the place, and correct what was reserved to what was used. A reservation leaves the sliding minute
        with time, so of a surplus only the part that is still in there comes back."""
        if self._limits.concurrency is not None:
            await self._store.vacate(self._caller.name, self._id)
        limit = self._limits.tokens_per_minute
        if limit is None or not self._reserved:
            return
        excess = used_tokens - self._reserved
        if excess > 0:
            excess = min(excess, (await self._window("tokens", limit)).remaining)
        else:
            age = self._clock() - self._reserved_at
            excess = ceil(excess * max(0.0, 1 - age / MINUTE))
        if excess:
            await self._store.take(self._key("tokens"), limit, excess)

    async def _take(self, unit: Unit, limit: int | None, cost: int) -> None:
        if limit is None:
            return
        taken = await self._store.take(self._key(unit), limit, cost)
        window = await self._window(unit, limit)
        self._caller.headers |= _headers(unit, window)
        if not taken:
            self._metrics.refusals.labels(UNKNOWN_MODEL, f"{unit}_per_minute").inc()
            raise too_many_requests(
                f"{self._caller.name} may use {limit} {unit} a minute; {window.remaining} are left, {cost} needed.",
                window.seconds_until(cost),
            )

    async def _window(self, unit: Unit, limit: int) -> Window:
        return await self._store.window(self._key(unit), limit)

    def _key(self, unit: Unit) -> str:
        return f"{unit}:{self._caller.name}"


def _headers(unit: Unit, window: Window) -> dict[str, str]:
    values = {"limit": window.limit, "remaining": window.remaining, "reset": f"{ceil(window.reset_seconds)}s"}
    return {f"x-ratelimit-{name}-{unit}": str(value) for name, value in values.items()}
