"""The gateway's end of the bus: a connection to each replica's engine, and each request's tokens to its feed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import zmq

from cluster.bus import HEARTBEAT_SECONDS, SILENT_PEER_SECONDS
from cluster.codec import (
    Abort,
    FromGateway,
    Heartbeat,
    Hello,
    State,
    TokenRow,
    Tokens,
    Welcome,
    decode_from_engine,
    encode,
)
from replicas.messages import LoadReport

log = logging.getLogger(__name__)

CONNECT_SECONDS = 10.0


class Feed(Protocol):
    """Where one request's tokens go."""

    request_id: str

    def push(self, row: TokenRow) -> None: ...


@dataclass(slots=True)
class _Line:
    """One connection. `sequence` is the last token message seen of `epoch`."""

    address: str
    socket: zmq.Socket[bytes]
    welcomed: asyncio.Event
    heard: float
    epoch: str = ""
    sequence: int = 0
    load: LoadReport = field(default_factory=LoadReport)


class BusClient:
    """Belongs to the event loop that created it."""

    def __init__(self) -> None:
        self.gateway_id = uuid.uuid4().hex
        self.lost_messages = 0
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._loop = asyncio.get_running_loop()
        self._lines: dict[str, _Line] = {}
        self._feeds: dict[str, Feed] = {}
        self._heart = self._loop.create_task(self._beat())

    async def connect(self, address: str) -> None:
        """Return once the engine at `address` has acknowledged a new Hello. Raises TimeoutError."""
        line = self._lines.get(address) or self._open(address)
        line.welcomed.clear()
        self._send(line, Hello())
        await asyncio.wait_for(line.welcomed.wait(), CONNECT_SECONDS)

    def subscribe(self, feed: Feed) -> None:
        self._feeds[feed.request_id] = feed

    def unsubscribe(self, request_id: str) -> None:
        self._feeds.pop(request_id, None)

    def abort(self, request_id: str) -> None:
        """Tell the engines to end a request. Safe at any time: who does not have it yet remembers."""
        for line in self._lines.values():
            self._send(line, Abort((request_id,)))

    def loads(self) -> dict[str, LoadReport]:
        """The last load report of each connected engine, by bus address."""
        return {line.address: line.load for line in self._lines.values()}

    def close(self) -> None:
        self._heart.cancel()
        for line in list(self._lines.values()):
            self._close(line)
        self._context.term()

    def _open(self, address: str) -> _Line:
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.IDENTITY, self.gateway_id.encode())
        socket.setsockopt(zmq.IPV6, int("[" in address))
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(address)
        line = _Line(address, socket, asyncio.Event(), self._loop.time())
        self._lines[address] = line
        self._loop.add_reader(socket.fileno(), self._read, line)
        return line

    def _close(self, line: _Line) -> None:
        self._loop.remove_reader(line.socket.fileno())
        line.socket.close()
        del self._lines[line.address]

    def _read(self, line: _Line) -> None:
        """Drain the socket: its file descriptor only signals the first of what waits."""
        while not line.socket.closed:
            try:
                payload = line.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            line.heard = self._loop.time()
            self._take(line, payload)

    def _take(self, line: _Line, payload: bytes) -> None:
        message = decode_from_engine(payload)
        match message:
            case Tokens(epoch, sequence, rows):
                self._check_sequence(line, epoch, sequence - 1)
                line.sequence = sequence
                self._deliver(rows)
            case State(load=load):
                line.load = load
            case Heartbeat(epoch, tokens_sequence):
                self._check_sequence(line, epoch, tokens_sequence)
                line.sequence = tokens_sequence
            case Welcome(epoch):
                if epoch != line.epoch:
                    line.epoch, line.sequence = epoch, 0
                line.welcomed.set()

    def _deliver(self, rows: Iterable[TokenRow]) -> None:
        feeds = self._feeds
        for row in rows:
            feed = feeds.get(row.request_id)
            if feed is not None:
                feed.push(row)

    def _check_sequence(self, line: _Line, epoch: str, expected: int) -> None:
        if epoch == line.epoch and expected > line.sequence:
            self.lost_messages += expected - line.sequence
            log.warning(
                "%d token messages from %s were lost; their texts will come late",
                expected - line.sequence,
                line.address,
            )

    def _send(self, line: _Line, message: FromGateway) -> None:
        with contextlib.suppress(zmq.Again):
            line.socket.send(encode(message), zmq.NOBLOCK)
        # Sending may swallow the descriptor's signal that something arrived.
        self._loop.call_soon(self._read, line)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(2 * HEARTBEAT_SECONDS)
            for line in list(self._lines.values()):
                if self._loop.time() - line.heard > SILENT_PEER_SECONDS:
                    self._close(line)
                else:
                    self._send(line, Hello())
