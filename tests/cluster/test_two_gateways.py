"""Two gateways before the same engine processes: one places for both, and neither depends on it."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from cluster.bus_client import BusClient
from cluster.codec import Finished
from cluster.desk import Desk
from cluster.dispatch import Dispatcher
from cluster.engine_client import EngineClient
from cluster.fleet import Fleet
from cluster.lead import Colleagues
from cluster.local_port import LocalPort
from cluster.router.placement import Placement
from cluster.token_feed import TokenFeed
from replicas.config import EngineConfig
from tests.support.engines import request

CONFIG = EngineConfig(block_size=4, max_batched_tokens=16, max_running=4)


class Gateway:
    """What of a gateway lies behind its gate."""

    def __init__(self, engines: list[EngineClient]) -> None:
        info = engines[0].info
        self.desk = Desk("127.0.0.1")
        self.bus = BusClient(self.desk.address)
        self.colleagues = Colleagues(self.desk.address, self.bus.desks)
        self.placement = Placement(info.block_size, Random(0))
        self.fleet = Fleet("model", self.bus, self.placement, self.colleagues)
        self.desk.open("model", self.placement)
        port = LocalPort(*engines)
        port.watch(self.fleet.update)
        self.dispatcher = Dispatcher(self.bus, self.fleet, port, info, 10.0, lambda broken: None)

    async def serve(self, name: str) -> list[int]:
        feed = TokenFeed()
        answer = await self.dispatcher.dispatch(request(name, [7] * 10, 6), feed, "caller", None).run(None)
        assert isinstance(answer, Finished)
        return list(answer.summary.token_ids)

    @property
    def booked(self) -> set[str]:
        return set(self.placement._placed)

    def close(self) -> None:
        self.colleagues.close()
        self.desk.close()
        self.bus.close()


async def until(condition) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it never came true")


@pytest.fixture
async def engines():
    builder = "tests.support.builders:checking"
    clients = [await EngineClient.start("a model", CONFIG, "127.0.0.1", builder) for _ in range(2)]
    yield clients
    for client in clients:
        await client.close()


@pytest.fixture
async def gateways(engines, monkeypatch):
    """The lead and the other one, once they have heard of each other."""
    monkeypatch.setattr("cluster.lead.ANSWER_SECONDS", 5.0)
    made = [Gateway(engines) for _ in range(2)]
    await until(lambda: all(len(g.bus.desks()) == len(g.placement.loads) == 2 for g in made))
    yield sorted(made, key=lambda gateway: gateway.colleagues._lead("model") != gateway.desk.address)
    for gateway in made:
        gateway.close()


async def test_the_lead_places_for_both_and_forgets_what_is_over(gateways):
    lead, other = gateways
    asked: list[str] = []
    place = lead.placement.place
    lead.placement.place = lambda wish, now: (asked.append(wish.request_id), place(wish, now))[1]
    names = [f"{number}" for number in range(8)]
    answers = await asyncio.gather(*(gateways[int(name) % 2].serve(name) for name in names))
    assert len(answers[0]) == 6
    assert all(answer == answers[0] for answer in answers)
    assert sorted(asked) == names
    await until(lambda: not lead.booked and not other.booked)
    assert other.fleet._leads == {}


async def test_requests_go_on_when_the_lead_is_gone(gateways, monkeypatch):
    lead, other = gateways
    lead.desk._loop.remove_reader(lead.desk._socket.fileno())  # as if it stood still
    monkeypatch.setattr("cluster.lead.ANSWER_SECONDS", 0.05)
    answers = await asyncio.gather(*(other.serve(str(number)) for number in range(4)))
    assert [len(answer) for answer in answers] == [6] * 4
    assert not other.booked


async def test_a_request_that_is_cancelled_while_the_lead_is_asked_leaves_no_booking(gateways):
    lead, other = gateways
    serving = asyncio.create_task(other.serve("x"))
    await asyncio.sleep(0)
    assert other.booked == {"x"}
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert not other.booked
    await until(lambda: not lead.booked)
