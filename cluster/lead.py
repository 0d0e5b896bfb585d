"""Gateways place requests through one of them, the model's lead.

Each could place its own alone, and does so while the lead is silent: it knows as much of the replicas as any other.
But what another has sent there in the last few milliseconds it cannot know, and requests that arrive together would
meet at the replica that looks best to all. Every gateway finds the lead by itself, by rendezvous hashing (Thaler and
Ravishankar, 1998) over those that the engines name. Should two not agree for a while, both are leads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count

import zmq

from cluster.codec import Advice, Ask, Settled, decode_advice, encode
from cluster.router.placement import Choice, Wish

ANSWER_SECONDS = 0.05
SILENT_SECONDS = 5.0  # how long one who has not answered is not asked


@dataclass(slots=True)
class _Line:
    """To one other gateway's desk. What is `asked` waits for advice."""

    socket: zmq.Socket[bytes]
    asked: dict[int, asyncio.Future[Advice]] = field(default_factory=dict)
    silent_until: float = float("-inf")


class Colleagues:
    """The other gateways. Belongs to the event loop that created it. `desks` tells the addresses of all gateways'
    desks; `own` is this one's."""

    def __init__(self, own: str, desks: Callable[[], Collection[str]]) -> None:
        self._own = own
        self._desks = desks
        self._loop = asyncio.get_running_loop()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._lines: dict[str, _Line] = {}
        self._numbers = count()

    async def ask(self, model: str, wish: Wish, num_replicas: int) -> tuple[str, Choice] | None:
        """The lead's address and where it places the request. None if this gateway is the lead itself, or the lead does
        not answer, or knows fewer replicas than this gateway."""
        lead = self._lead(model)
        if lead == self._own:
            return None
        line, number = self._line(lead), next(self._numbers)
        answer = line.asked[number] = self._loop.create_future()
        advice = None
        try:
            self._send(line, Ask(number, model, wish))
            async with asyncio.timeout(ANSWER_SECONDS):
                advice = await answer
        except (TimeoutError, zmq.Again):
            line.silent_until = self._loop.time() + SILENT_SECONDS
        finally:
            del line.asked[number]
            if advice is None or advice.num_replicas < num_replicas:
                self.settle(lead, model, wish.request_id)
        if advice is None or advice.choice is None or advice.num_replicas < num_replicas:
            return None
        return lead, advice.choice

    def settle(self, lead: str, model: str, request_id: str) -> None:
        """Tell the lead that a request which it has placed has its first token, has ended, or went elsewhere."""
        if (line := self._lines.get(lead)) is None:
            return
        try:
            self._send(line, Settled(model, request_id))
        except zmq.Again:
            return  # it is gone, or forgets by itself in a while

    def close(self) -> None:
        for address in list(self._lines):
            self._close(address)
        self._context.term()

    def _lead(self, model: str) -> str:
        desks = self._desks()
        for address in self._lines.keys() - desks:
            self._close(address)
        now = self._loop.time()
        silent = {address for address, line in self._lines.items() if now < line.silent_until}
        return max({self._own, *desks} - silent, key=lambda address: blake2b(f"{model} {address}".encode()).digest())

    def _line(self, address: str) -> _Line:
        line = self._lines.get(address)
        if line is None:
            socket = self._context.socket(zmq.DEALER)
            socket.setsockopt(zmq.IPV6, int("[" in address))
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(address)
            line = self._lines[address] = _Line(socket)
            self._loop.add_reader(socket.fileno(), self._read, line)
        return line

    def _read(self, line: _Line) -> None:
        """Drain the socket: its file descriptor only signals the first of what waits."""
        while not line.socket.closed:
            try:
                advice = decode_advice(line.socket.recv(zmq.NOBLOCK))
            except zmq.Again:
                return
            answer = line.asked.get(advice.number)
            if answer is not None and not answer.done():
                answer.set_result(advice)

    def _send(self, line: _Line, message: Ask | Settled) -> None:
        """Raises zmq.Again if it cannot go out."""
        line.socket.send(encode(message), zmq.NOBLOCK)
        # Sending may swallow the descriptor's signal that something arrived.
        self._loop.call_soon(self._read, line)

    def _close(self, address: str) -> None:
        line = self._lines.pop(address)
        self._loop.remove_reader(line.socket.fileno())
        line.socket.close()
