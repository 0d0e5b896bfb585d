"""The bus between a real engine process and a gateway: what a watcher is told, and when."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from cluster.bus_client import BusClient
from cluster.codec import Finished, State, Submit, decode_answer, encode
from cluster.engine_client import EngineClient
from replicas.config import EngineConfig
from replicas.kv.prefix import chain_keys, root_key
from tests.support.engines import request

CONFIG = EngineConfig(block_size=4, max_batched_tokens=16, max_running=4)


class Watching:
    """A watcher that keeps its own picture of the engine's cache."""

    def __init__(self) -> None:
        self.keys: set[bytes] = set()
        self.known = asyncio.Event()
        self.gone = asyncio.Event()
        self.taken: list[str] = []
        self.lost_at = 0.0

    def knows(self, keys) -> None:
        self.keys = set(keys)
        self.known.set()

    def changed(self, state: State) -> None:
        self.keys -= set(state.removed)
        self.keys |= set(state.stored)
        self.taken += state.taken

    def lost(self) -> None:
        self.lost_at = time.monotonic()
        self.gone.set()


@pytest.fixture
async def engine():
    client = await EngineClient.start("a model", CONFIG, "127.0.0.1", "tests.support.builders:checking")
    yield client
    await client.close()


@pytest.fixture
async def bus():
    client = BusClient()
    yield client
    client.close()


async def watch(bus, engine) -> Watching:
    watching = Watching()
    bus.open(engine.info.bus_address, watching)
    await asyncio.wait_for(watching.known.wait(), 5)
    return watching


async def generate(engine, bus, name: str, prompt: list[int], max_tokens: int = 6) -> list[int]:
    asked = request(name, prompt, max_tokens)
    answer = decode_answer(await engine.generate(name, encode(Submit(bus.gateway_id, asked))))
    assert isinstance(answer, Finished)
    return [*prompt, *answer.summary.token_ids]


def keys_of(token_ids: list[int], computed: int) -> set[bytes]:
    return set(chain_keys(root_key("checked", 4), token_ids[:computed], 4))


async def settled(watching: Watching, keys: set[bytes]) -> None:
    for _ in range(100):
        if watching.keys == keys:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"{len(watching.keys ^ keys)} keys are missing or should not be there")


async def test_a_watcher_knows_what_the_cache_holds_as_it_fills(engine, bus):
    watching = await watch(bus, engine)
    assert watching.keys == set()
    whole = await generate(engine, bus, "r", list(range(10)))
    await settled(watching, keys_of(whole, len(whole) - 1))
    assert watching.taken == ["r"]


async def test_all_gateways_hear_what_an_engine_took_and_of_each_other(engine):
    buses = [BusClient(desk) for desk in ("here", "there", "")]
    watchers = [await watch(bus, engine) for bus in buses]
    await generate(engine, buses[0], "r", list(range(10)))
    for watching in watchers:
        await settled(watching, watchers[0].keys)
        assert watching.taken == ["r"]
    for bus in buses:
        for _ in range(100):
            if bus.desks() == {"here", "there"}:
                break
            await asyncio.sleep(0.05)
        assert bus.desks() == {"here", "there"}
        bus.close()


async def test_a_newcomer_learns_what_was_there_before(engine, bus):
    await watch(bus, engine)
    whole = await generate(engine, bus, "r", list(range(10)))
    newcomer = BusClient()
    watching = await watch(newcomer, engine)
    await settled(watching, keys_of(whole, len(whole) - 1))
    newcomer.close()


async def test_evicted_blocks_are_told(engine, bus):
    """The pool has 64 blocks: fill it several times over, and compare with what the engine itself says."""
    watching = await watch(bus, engine)
    for turn in range(6):
        await generate(engine, bus, str(turn), [turn] * 100, 20)
    newcomer = BusClient()
    truth = await watch(newcomer, engine)
    assert 0 < len(truth.keys) <= 64
    await settled(watching, truth.keys)
    newcomer.close()


async def test_after_lost_state_nothing_is_credited_until_the_snapshot(engine, bus):
    watching = await watch(bus, engine)
    whole = await generate(engine, bus, "r", list(range(10)))
    await settled(watching, keys_of(whole, len(whole) - 1))
    (line,) = bus._lines.values()
    line.state_sequence -= 5  # as if five messages had been lost before the last one
    told: list[set[bytes]] = []
    knows = watching.knows
    watching.knows = lambda keys: (told.append(set(keys)), knows(keys))
    other = await generate(engine, bus, "s", [7] * 10)
    await settled(watching, keys_of(whole, len(whole) - 1) | keys_of(other, len(other) - 1))
    assert told[0] == set()


async def test_a_gap_on_an_idle_line_is_found_by_the_heartbeat(engine, bus):
    watching = await watch(bus, engine)
    whole = await generate(engine, bus, "r", list(range(10)))
    await settled(watching, keys_of(whole, len(whole) - 1))
    (line,) = bus._lines.values()
    line.state_sequence -= 1
    watching.keys.clear()
    await settled(watching, keys_of(whole, len(whole) - 1))


async def test_a_killed_engine_is_lost_at_once_and_a_stopped_one_within_two_seconds(engine, bus):
    watching = await watch(bus, engine)
    began = time.monotonic()
    os.kill(engine.pid, signal.SIGSTOP)
    await asyncio.wait_for(watching.gone.wait(), 5)
    assert watching.lost_at - began < 2.5
    watching.known.clear()
    os.kill(engine.pid, signal.SIGCONT)
    await asyncio.wait_for(watching.known.wait(), 5)
    watching.gone.clear()
    os.kill(engine.pid, signal.SIGKILL)
    await asyncio.wait_for(watching.gone.wait(), 1)


async def test_a_long_step_is_no_loss(bus):
    engine = await EngineClient.start("m", CONFIG, "127.0.0.1", "tests.support.builders:long_stepping")
    watching = await watch(bus, engine)
    await generate(engine, bus, "r", [1, 2, 3], 1)
    assert not watching.gone.is_set()
    await engine.close()


async def test_a_closed_line_tells_nobody(engine, bus):
    watching = await watch(bus, engine)
    bus.disconnect(engine.info.bus_address)
    os.kill(engine.pid, signal.SIGKILL)
    await asyncio.sleep(0.3)
    assert not watching.gone.is_set()
    assert bus.loads() == {}
