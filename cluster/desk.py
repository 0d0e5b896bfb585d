"""Where a gateway answers the others: it places their requests as if they were its own (see `lead.py`)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque

import msgspec
import zmq

from cluster.codec import Advice, Ask, Settled, decode_to_desk, encode
from cluster.router.placement import Placement
from cluster.sockets import bind

log = logging.getLogger(__name__)

BOOKED_SECONDS = 60.0  # if the one who asked never says what became of it


class Desk:
    """Belongs to the event loop that created it."""

    def __init__(self, host: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self.address = bind(self._socket, host)
        self._placements: dict[str, Placement] = {}
        self._booked: deque[tuple[float, Settled]] = deque()
        self._loop.add_reader(self._socket.fileno(), self._read)

    def open(self, model: str, placement: Placement) -> None:
        """Answer questions about this model from now on."""
        self._placements[model] = placement

    def close(self) -> None:
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        self._context.term()

    def _read(self) -> None:
        """Drain the socket: its file descriptor only signals the first of what waits."""
        while True:
            try:
                asker, payload = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                message = decode_to_desk(payload)
            except msgspec.MsgspecError as error:  # from a gateway of another version
                log.warning("another gateway's question cannot be read and is dropped: %s", error)
                continue
            if isinstance(message, Settled):
                self._settle(message)
            else:
                self._socket.send_multipart((asker, encode(self._answer(message, time.monotonic()))))

    def _answer(self, ask: Ask, now: float) -> Advice:
        while self._booked and self._booked[0][0] <= now:
            self._settle(self._booked.popleft()[1])
        placement = self._placements.get(ask.model)
        if placement is None:
            return Advice(ask.number, None, 0)
        self._booked.append((now + BOOKED_SECONDS, Settled(ask.model, ask.wish.request_id)))
        return Advice(ask.number, placement.place(ask.wish, now), len(placement.loads))

    def _settle(self, settled: Settled) -> None:
        if (placement := self._placements.get(settled.model)) is not None:
            placement.settle(settled.request_id)
