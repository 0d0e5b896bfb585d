"""Gateways that place through one of them: who it is, what it is told, and what becomes of it when it is silent."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from random import Random

import pytest
import zmq

from cluster.desk import Desk
from cluster.lead import ANSWER_SECONDS, Colleagues
from cluster.router.placement import Placement, Wish
from replicas.messages import LoadReport

MODEL = "a model"


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A busy machine is not what is tested here."""
    monkeypatch.setattr("cluster.lead.ANSWER_SECONDS", 5.0)


def wish(name: object, tokens: int = 1000) -> Wish:
    return Wish(str(name), (), tokens, 10)


class Gateway:
    """What of a gateway matters here."""

    def __init__(self, desks: set[str], replicas: int) -> None:
        self.placement = Placement(16, Random(0))
        for number in range(replicas):
            self.placement.join(f"replica-{number}")
            self.placement.observe(f"replica-{number}", LoadReport(prefill_rate=10_000.0), 0.0)
        self.desk = Desk("127.0.0.1")
        self.desk.open(MODEL, self.placement)
        self.colleagues = Colleagues(self.desk.address, lambda: desks)
        desks.add(self.desk.address)

    async def ask(self, name: object):
        return await self.colleagues.ask(MODEL, wish(name), len(self.placement.loads))

    @property
    def bookings(self) -> set[str]:
        return {request_id for load in self.placement.loads.values() for request_id in load.bookings}

    def close(self) -> None:
        self.colleagues.close()
        self.desk.close()


@contextmanager
def gateways(count: int, replicas: int = 8):
    desks: set[str] = set()
    made = [Gateway(desks, replicas) for _ in range(count)]
    try:
        yield made
    finally:
        for gateway in made:
            gateway.close()


def lead_and_others(made: list[Gateway]) -> tuple[Gateway, list[Gateway]]:
    leads = [gateway for gateway in made if gateway.colleagues._lead(MODEL) == gateway.desk.address]
    assert len(leads) == 1
    return leads[0], [gateway for gateway in made if gateway is not leads[0]]


async def until(condition) -> None:
    for _ in range(200):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came true")


@pytest.fixture
def deaf():
    """The address of a desk at which nobody sits."""
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.bind("tcp://127.0.0.1:0")
    yield socket.getsockopt_string(zmq.LAST_ENDPOINT)
    socket.close(linger=0)
    context.term()


async def test_all_find_the_same_lead_and_models_have_different_ones():
    with gateways(4) as made:
        leads = {f"model {number}": {g.colleagues._lead(f"model {number}") for g in made} for number in range(32)}
        assert all(len(addresses) == 1 for addresses in leads.values())
        assert set.union(*leads.values()) == {gateway.desk.address for gateway in made}


async def test_the_lead_books_what_others_ask_for_until_they_say_that_it_is_settled():
    with gateways(3) as made:
        lead, (one, other) = lead_and_others(made)
        assert await lead.ask("its own") is None
        address, choice = await one.ask("x")
        assert (address, lead.bookings) == (lead.desk.address, {"x"})
        assert choice.replica in lead.placement.loads
        await other.ask("y")
        one.colleagues.settle(address, MODEL, "x")
        await until(lambda: lead.bookings == {"y"})


async def test_the_lead_is_told_all_that_matters_of_a_request():
    with gateways(2) as made:
        lead, (other,) = lead_and_others(made)
        keys = tuple(bytes([number]) * 16 for number in range(10))
        for replica in ("replica-1", "replica-2"):
            lead.placement.stored(replica, keys)
        asked = Wish("x", keys, 200, 10, session="s", avoid=frozenset(["replica-1"]))
        _, choice = await other.colleagues.ask(MODEL, asked, 8)
        assert (choice.replica, choice.cached_tokens) == ("replica-2", 160)
        assert lead.placement._sessions == {"s": "replica-2"}


async def test_requests_that_come_to_all_gateways_at_once_do_not_meet_at_one_replica():
    with gateways(8) as made:
        lead, others = lead_and_others(made)
        mine = lead.placement.place(wish("mine"), 0.0)
        advice = await asyncio.gather(*(gateway.ask(number) for number, gateway in enumerate(others)))
        assert len({mine.replica, *(choice.replica for _, choice in advice)}) == 8


async def test_a_silent_lead_costs_one_short_wait_and_then_another_leads(deaf, monkeypatch):
    monkeypatch.setattr("cluster.lead.ANSWER_SECONDS", ANSWER_SECONDS)
    with gateways(1) as (gateway,):
        gateway.colleagues = colleagues = Colleagues(gateway.desk.address, lambda: {gateway.desk.address, deaf})
        model = next(name for name in map(str, range(100)) if colleagues._lead(name) == deaf)
        began = time.monotonic()
        assert await colleagues.ask(model, wish(1), 8) is None
        assert time.monotonic() - began < 1.0
        assert colleagues._lead(model) == gateway.desk.address


async def test_one_that_knows_fewer_replicas_is_not_believed():
    with gateways(2) as made:
        lead, (other,) = lead_and_others(made)
        lead.placement.leave("replica-0")
        assert await other.ask("x") is None
        await until(lambda: not lead.bookings)


async def test_nothing_stays_booked_for_a_request_whose_client_leaves_while_the_lead_is_asked():
    with gateways(2) as made:
        lead, (other,) = lead_and_others(made)
        question = asyncio.create_task(other.ask("x"))
        await asyncio.sleep(0)
        question.cancel()
        with pytest.raises(asyncio.CancelledError):
            await question
        assert await other.ask("y") is not None
        await until(lambda: lead.bookings == {"y"})


async def test_a_model_that_the_lead_does_not_serve_is_placed_alone():
    with gateways(2) as made:
        model = next(str(n) for n in range(100) if made[0].colleagues._lead(str(n)) == made[1].desk.address)
        assert await made[0].colleagues.ask(model, wish(1), 0) is None


async def test_what_cannot_be_read_is_dropped():
    with gateways(2) as made:
        lead, (other,) = lead_and_others(made)
        await other.ask("x")
        line = other.colleagues._lines[lead.desk.address]
        line.socket.send(b"nonsense")
        assert await other.ask("y") is not None
