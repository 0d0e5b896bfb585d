"""The gateway's end of the bus: a line to each replica's engine, each request's tokens to its feed, and each engine's
state to whoever watches it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import zmq
from zmq.utils.monitor import parse_monitor_message

from cluster.bus import HEARTBEAT_SECONDS
from cluster.codec import (
    Abort,
    Began,
    FromGateway,
    Heartbeat,
    Hello,
    Snapshot,
    SnapshotWanted,
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
PROBE_MILLISECONDS = 250
SILENCE_MILLISECONDS = 1250


class Feed(Protocol):
    """Where one request's tokens go."""

    def began(self) -> None: ...

    def push(self, row: TokenRow) -> None: ...


class Watcher(Protocol):
    """Who is told of one engine's state."""

    def knows(self, keys: Sequence[bytes]) -> None:
        """The line is up, and the engine's cache holds these KV blocks and no others, as far as is known."""

    def changed(self, state: State) -> None:
        """A load report, and what has changed in the cache."""

    def lost(self) -> None:
        """The engine is dead, stands still or cannot be reached. Should it come back, `knows` tells."""


@dataclass(slots=True)
class Line:
    """One connection. `tokens_sequence` and `state_sequence` are the last messages seen of `epoch`'s streams; while
    the cache's content is `unknown` its changes mean nothing."""

    address: str
    socket: zmq.Socket[bytes]
    monitor: zmq.Socket[bytes]
    watcher: Watcher | None
    welcomed: asyncio.Event = field(default_factory=asyncio.Event)
    epoch: str = ""
    tokens_sequence: int = 0
    state_sequence: int = 0
    unknown: bool = True
    load: LoadReport = field(default_factory=LoadReport)
    desks: tuple[str, ...] = ()


class BusClient:
    """Belongs to the event loop that created it. `desk` is where other gateways may ask this one; engines tell them.

    ZeroMQ's own threads probe every line, at both ends. So a process that stands still is noticed within 1.5 s and a
    dead one at once, while an engine in the midst of a long step is not taken for either.
    """

    def __init__(self, desk: str = "") -> None:
        self.gateway_id = uuid.uuid4().hex
        self._desk = desk
        self.lost_messages = 0
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._loop = asyncio.get_running_loop()
        self._lines: dict[str, Line] = {}
        self._feeds: dict[str, Feed] = {}
        self._heart = self._loop.create_task(self._beat())

    def open(self, address: str, watcher: Watcher | None = None) -> None:
        """Begin a line to the engine at `address`. The watcher hears when it is up."""
        if address not in self._lines:
            self._open(address, watcher)

    async def connect(self, address: str) -> None:
        """Return once the engine at `address` has acknowledged a new Hello. Raises TimeoutError."""
        self.open(address)
        line = self._lines[address]
        line.welcomed.clear()
        self._send(line, Hello(self._desk))
        await asyncio.wait_for(line.welcomed.wait(), CONNECT_SECONDS)

    def resync(self, address: str) -> None:
        """Have the watcher told anew what the engine's cache holds."""
        if (line := self._lines.get(address)) is not None:
            self._forget_state(line)

    def disconnect(self, address: str) -> None:
        """Close a line, if it is there; its watcher is not told."""
        line = self._lines.pop(address, None)
        if line is None:
            return
        for socket in (line.socket, line.monitor):
            self._loop.remove_reader(socket.fileno())
        line.socket.disable_monitor()
        line.monitor.close()
        line.socket.close()

    def subscribe(self, request_id: str, feed: Feed) -> None:
        self._feeds[request_id] = feed

    def unsubscribe(self, request_id: str) -> None:
        self._feeds.pop(request_id, None)

    def abort(self, address: str, request_id: str) -> None:
        """Tell an engine to end a request. Safe at any time: one that does not have it yet remembers."""
        if (line := self._lines.get(address)) is not None:
            self._send(line, Abort((request_id,)))

    def loads(self) -> dict[str, LoadReport]:
        """The last load report of each connected engine, by bus address."""
        return {line.address: line.load for line in self._lines.values()}

    def desks(self) -> frozenset[str]:
        """Of all gateways that the engines know."""
        return frozenset(desk for line in self._lines.values() for desk in line.desks)

    def close(self) -> None:
        self._heart.cancel()
        for address in list(self._lines):
            self.disconnect(address)
        self._context.term()

    def _open(self, address: str, watcher: Watcher | None) -> None:
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.IDENTITY, self.gateway_id.encode())
        socket.setsockopt(zmq.IPV6, int("[" in address))
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.HEARTBEAT_IVL, PROBE_MILLISECONDS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, SILENCE_MILLISECONDS)
        monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        socket.connect(address)
        line = Line(address, socket, monitor, watcher)
        self._lines[address] = line
        self._loop.add_reader(socket.fileno(), self._read, line)
        self._loop.add_reader(monitor.fileno(), self._read_monitor, line)
        self._read_monitor(line)  # a descriptor signals nothing before its socket was first read

    def _read(self, line: Line) -> None:
        """Drain the socket: its file descriptor only signals the first of what waits."""
        while not line.socket.closed:
            try:
                payload = line.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._take(line, payload)

    def _read_monitor(self, line: Line) -> None:
        while not line.monitor.closed:
            try:
                event = parse_monitor_message(line.monitor.recv_multipart(zmq.NOBLOCK))["event"]
            except zmq.Again:
                return
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._send(line, Hello(self._desk))
                continue
            self._read(line)  # what arrived before the end counts
            line.unknown = True
            if line.watcher is not None:
                line.watcher.lost()

    def _take(self, line: Line, payload: bytes) -> None:
        message = decode_from_engine(payload)
        match message:
            case Tokens(epoch, sequence, rows):
                self._count_lost(line, epoch, sequence - 1)
                line.tokens_sequence = sequence
                self._deliver(rows)
            case State():
                self._take_state(line, message)
            case Began(request_ids):
                for request_id in request_ids:
                    if (feed := self._feeds.get(request_id)) is not None:
                        feed.began()
            case Snapshot(epoch, sequence, keys):
                line.epoch, line.state_sequence, line.unknown = epoch, sequence, False
                if line.watcher is not None:
                    line.watcher.knows(keys)
            case Heartbeat(epoch, tokens_sequence, state_sequence, desks):
                line.desks = desks
                self._count_lost(line, epoch, tokens_sequence)
                line.tokens_sequence = tokens_sequence
                if epoch != line.epoch or state_sequence > line.state_sequence:
                    self._forget_state(line)
            case Welcome(epoch):
                if epoch != line.epoch:
                    line.epoch, line.tokens_sequence, line.state_sequence = epoch, 0, 0
                line.welcomed.set()
                if line.unknown:
                    self._send(line, SnapshotWanted())

    def _take_state(self, line: Line, state: State) -> None:
        line.load = state.load
        if not line.unknown and (state.epoch != line.epoch or state.sequence != line.state_sequence + 1):
            self._forget_state(line)
        line.state_sequence = state.sequence
        if line.watcher is not None and not line.unknown:
            line.watcher.changed(state)

    def _forget_state(self, line: Line) -> None:
        """Some of the state stream was lost: nothing is known of the engine's cache until a snapshot comes."""
        line.unknown = True
        self._send(line, SnapshotWanted())
        if line.watcher is not None:
            line.watcher.knows(())

    def _deliver(self, rows: Iterable[TokenRow]) -> None:
        feeds = self._feeds
        for row in rows:
            feed = feeds.get(row.request_id)
            if feed is not None:
                feed.push(row)

    def _count_lost(self, line: Line, epoch: str, expected: int) -> None:
        if epoch == line.epoch and expected > line.tokens_sequence:
            self.lost_messages += expected - line.tokens_sequence
            log.warning(
                "%d token messages from %s were lost; their texts will come late",
                expected - line.tokens_sequence,
                line.address,
            )

    def _send(self, line: Line, message: FromGateway) -> None:
        with contextlib.suppress(zmq.Again):
            line.socket.send(encode(message), zmq.NOBLOCK)
        # Sending may swallow the descriptor's signal that something arrived.
        self._loop.call_soon(self._read, line)

    async def _beat(self) -> None:
        """Signs of life, by which an engine knows whose requests to keep; asks again for what may have been lost."""
        while True:
            await asyncio.sleep(2 * HEARTBEAT_SECONDS)
            for line in list(self._lines.values()):
                self._send(line, Hello(self._desk))
