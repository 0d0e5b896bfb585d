"""One model's replicas as a gateway knows them: who runs says Serve, who answers says the bus, and what each holds and
does goes to the placement.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from cluster.bus_client import BusClient
from cluster.codec import State
from cluster.lead import Colleagues
from cluster.router.breaker import Breaker
from cluster.router.placement import Choice, Placement, Wish

log = logging.getLogger(__name__)

LEAST_TTFT_SECONDS = 0.01  # below lies noise


class Guest(Protocol):
    """A request at a replica, which wants to know what becomes of its host."""

    def on_taken(self) -> None:
        """The engine has it."""

    def on_lost(self) -> None:
        """The replica is dead, stands still or cannot be reached."""

    def on_draining(self) -> None:
        """The replica takes no new requests, and will end."""


@dataclass(slots=True, eq=False)
class Member:
    """One replica, and the watcher of its line. It is `up` while the line is, and takes requests unless `draining`.
    `reports` counts its load reports; its `guests` are known by their requests' ids."""

    name: str
    address: str
    fleet: Fleet
    up: bool = False
    draining: bool = False
    reports: int = 0
    guests: dict[str, Guest] = field(default_factory=dict)

    def knows(self, keys: Sequence[bytes]) -> None:
        self.up = True
        self.fleet.on_known(self, keys)

    def changed(self, state: State) -> None:
        self.fleet.on_changed(self, state)

    def lost(self) -> None:
        if self.up:
            self.up = False
            self.fleet.on_lost(self)


class Fleet:
    """Belongs to the event loop of its bus. `on_change` hears that the replicas or their loads have changed."""

    def __init__(self, model: str, bus: BusClient, placement: Placement, colleagues: Colleagues) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self._model = model
        self._bus = bus
        self._placement = placement
        self._colleagues = colleagues
        self._leads: dict[str, str] = {}
        self._members: dict[str, Member] = {}
        self._breaker = Breaker()
        self._arrival = asyncio.Event()

    @property
    def open_replicas(self) -> int:
        """How many replicas take requests."""
        return len(self._placement.loads)

    def update(self, members: Mapping[str, str]) -> None:
        """Serve says that these replicas run, each with the address of its bus."""
        for name in self._members.keys() - members.keys():
            self._drain(self._members[name])
        for name, address in members.items():
            member = self._members.get(name)
            if member is None:
                member = self._members[name] = Member(name, address, self)
                self._bus.open(address, member)
            elif member.draining:
                member.draining = False
                self._bus.resync(address)

    def place(self, wish: Wish) -> tuple[Member, Choice] | None:
        """The replica where the request should run, which books it there. None if no replica takes it. Replicas that
        have lately failed or been slow are for when there are no others."""
        now = time.monotonic()
        shunned = self._breaker.shunned(now)
        choice = self._placement.place(replace(wish, avoid=wish.avoid | shunned) if shunned else wish, now)
        if choice is None and shunned:
            choice = self._placement.place(wish, now)
        if choice is None:
            return None
        self._breaker.began(choice.replica, now)
        return self._members[choice.replica], choice

    async def confer(self, wish: Wish, member: Member, choice: Choice) -> tuple[Member, Choice] | None:
        """Where a request shall run that was placed here just now: the lead of the model's gateways may know better,
        and then it is booked there. None if the replica has gone meanwhile."""
        try:
            advice = await self._advice(wish, member)
        except asyncio.CancelledError:
            self.settle(wish.request_id)
            raise
        if advice is not None:
            lead, advised = advice
            self._leads[wish.request_id] = lead
            if self._placement.move(wish, advised):
                member, choice = self._members[advised.replica], advised
            else:
                self._settle_there(wish.request_id)
        if member.name in self._placement.loads:
            return member, choice
        self.settle(wish.request_id)
        return None

    def succeeded(self, member: Member, seconds: float, expected: float) -> None:
        """A request's first token came after `seconds`."""
        self._breaker.succeeded(member.name, seconds / max(expected, LEAST_TTFT_SECONDS), time.monotonic())

    def failed(self, member: Member) -> None:
        """A request was lost there."""
        self._breaker.failed(member.name, time.monotonic())

    @property
    def open_circuits(self) -> int:
        """How many replicas are left alone at present, or on probation."""
        now = time.monotonic()
        return sum(self._breaker.state(name, now) != "closed" for name in self._members)

    def num_guests(self, replica: str) -> int:
        """How many requests of this gateway are there."""
        return len(self._members[replica].guests)

    def settle(self, request_id: str) -> None:
        """The request's first token came, or it is no longer at its replica."""
        self._placement.settle(request_id)
        self._settle_there(request_id)
        self.on_change()

    async def wait_for_arrival(self, seconds: float) -> None:
        """Return when a replica has begun to take requests, or after `seconds`."""
        self._arrival.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._arrival.wait(), seconds)

    def on_known(self, member: Member, keys: Sequence[bytes]) -> None:
        if member.draining:
            return
        if member.name not in self._placement.loads:
            log.info("replica %s takes requests, with %d KV blocks in its cache", member.name, len(keys))
        self._placement.join(member.name)
        self._placement.cleared(member.name)
        self._placement.stored(member.name, keys)
        self._arrival.set()
        self.on_change()

    def on_changed(self, member: Member, state: State) -> None:
        self._placement.removed(member.name, state.removed)
        self._placement.stored(member.name, state.stored)
        self._placement.observe(member.name, state.load, time.monotonic(), state.taken)
        member.reports += 1
        for request_id in state.taken:
            if (guest := member.guests.get(request_id)) is not None:
                guest.on_taken()
        self.on_change()

    def on_lost(self, member: Member) -> None:
        log.warning("replica %s is lost, with %d requests", member.name, len(member.guests))
        self._placement.leave(member.name)
        if member.draining:
            self._forget(member)
        for guest in list(member.guests.values()):
            guest.on_lost()
        self.on_change()

    async def _advice(self, wish: Wish, member: Member) -> tuple[str, Choice] | None:
        """A probe of a replica that has failed is this gateway's own affair."""
        now = time.monotonic()
        if self._breaker.state(member.name, now) != "closed":
            return None
        shunned = self._breaker.shunned(now)
        return await self._colleagues.ask(
            self._model, replace(wish, avoid=wish.avoid | shunned) if shunned else wish, self.open_replicas
        )

    def _settle_there(self, request_id: str) -> None:
        if (lead := self._leads.pop(request_id, None)) is not None:
            self._colleagues.settle(lead, self._model, request_id)

    def _drain(self, member: Member) -> None:
        if member.draining:
            return
        log.info("replica %s drains, with %d requests", member.name, len(member.guests))
        member.draining = True
        self._placement.leave(member.name)
        if not member.up:
            self._forget(member)
        for guest in list(member.guests.values()):
            guest.on_draining()
        self.on_change()

    def _forget(self, member: Member) -> None:
        self._breaker.forget(member.name)
        self._bus.disconnect(member.address)
        self._members.pop(member.name, None)
