"""The engine's end of the bus: one socket, one token stream and one state stream to every gateway.

ROUTER to DEALER and never PUB to SUB, which drops silently. A message that cannot be sent is lost but its sequence
number is spent, so the gateway notices: it takes lost tokens from the unary call's summary, and after lost state asks
for a snapshot.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec
import zmq

from cluster.codec import (
    Abort,
    Began,
    FromEngine,
    Heartbeat,
    Hello,
    Snapshot,
    SnapshotWanted,
    State,
    TokenRow,
    Tokens,
    Welcome,
    decode_from_gateway,
    encode,
)
from cluster.sockets import bind
from replicas.messages import KvEvent, KvStored, LoadReport

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 1.0
SILENT_PEER_SECONDS = 15.0
STATE_SECONDS = 0.02
MAX_UNSENT_MESSAGES = 100_000


@dataclass(slots=True)
class _Peer:
    """What the engine knows of one gateway: when it last said something, where its streams are, and where other
    gateways may ask it."""

    heard: float
    tokens_sequence: int = 0
    state_sequence: int = 0
    wants_snapshot: bool = False
    desk: str = ""


class BusServer:
    """Not thread-safe: it lives in the engine's loop, which says what time it is."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], host: str, epoch: str) -> None:
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.setsockopt(zmq.SNDHWM, MAX_UNSENT_MESSAGES)
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a gateway that comes back is the same gateway
        self.socket.setsockopt(zmq.HEARTBEAT_IVL, 2000)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.address = bind(self.socket, host)
        self._epoch = epoch
        self._peers: dict[str, _Peer] = {}
        self._changes: dict[bytes, bool] = {}
        self._taken: list[str] = []
        self._last_heartbeat = self._last_state = 0.0
        self._rested = False

    def knows(self, gateway: str) -> bool:
        return gateway in self._peers

    def receive(self, now: float) -> list[str]:
        """Take in what gateways sent. Returns the ids of the requests they abort."""
        aborted: list[str] = []
        while True:
            try:
                identity, *frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return aborted
            try:
                gateway, message = identity.decode(), decode_from_gateway(b"".join(frames))
            except (UnicodeDecodeError, msgspec.MsgspecError) as error:
                log.warning("a message on the bus cannot be read and is dropped: %s", error)
                continue
            peer = self._peers.setdefault(gateway, _Peer(now))
            peer.heard = now
            match message:
                case Hello(desk):
                    peer.desk = desk
                    self._send(gateway, Welcome(self._epoch))
                case SnapshotWanted():
                    peer.wants_snapshot = True
                case Abort(request_ids):
                    aborted += request_ids

    def took(self, request_id: str) -> None:
        """A request has been queued. All gateways hear of it, since any may have booked it."""
        self._taken.append(request_id)

    def begin(self, ids_by_gateway: dict[str, list[str]]) -> None:
        """Tell gateways which of their requests enter the batch now. Goes out before the step is computed."""
        for gateway, request_ids in ids_by_gateway.items():
            if gateway in self._peers:
                self._send(gateway, Began(tuple(request_ids)))

    def publish(self, rows_by_gateway: dict[str, list[TokenRow]]) -> None:
        """One step's tokens, one message to each gateway."""
        for gateway, rows in rows_by_gateway.items():
            peer = self._peers.get(gateway)
            if peer is None:
                continue
            peer.tokens_sequence += 1
            self._send(gateway, Tokens(self._epoch, peer.tokens_sequence, tuple(rows)))

    def note(self, events: Iterable[KvEvent]) -> None:
        """Keep what changed in the cache for the next state message; only the last change of a key counts."""
        if not self._peers:
            return  # whoever comes later begins with a snapshot
        for event in events:
            is_stored = isinstance(event, KvStored)
            for key in event.block_keys:
                self._changes[key] = is_stored

    def report(
        self,
        load: Callable[[], LoadReport],
        cached_keys: Callable[[], tuple[bytes, ...]],
        now: float,
        resting: bool,
    ) -> None:
        """Send all gateways the state, at most every 20 ms unless the engine comes to rest, and snapshots to those
        that want one."""
        due = now - self._last_state >= STATE_SECONDS or (resting and not self._rested)
        self._rested = resting
        if not (due or any(peer.wants_snapshot for peer in self._peers.values())):
            return
        self._last_state = now
        state, changes, self._changes = load(), self._changes, {}
        taken, self._taken = tuple(self._taken), []
        stored = tuple(key for key, is_stored in changes.items() if is_stored)
        removed = tuple(key for key, is_stored in changes.items() if not is_stored)
        for gateway, peer in self._peers.items():
            peer.state_sequence += 1
            self._send(gateway, State(self._epoch, peer.state_sequence, state, stored, removed, taken))
            if peer.wants_snapshot:
                peer.wants_snapshot = False
                peer.state_sequence += 1
                self._send(gateway, Snapshot(self._epoch, peer.state_sequence, cached_keys()))

    def keep_alive(self, now: float) -> list[str]:
        """Send heartbeats when due. Returns the gateways that have fallen silent and are now forgotten."""
        if now - self._last_heartbeat < HEARTBEAT_SECONDS:
            return []
        self._last_heartbeat = now
        silent = [name for name, peer in self._peers.items() if now - peer.heard > SILENT_PEER_SECONDS]
        for gateway in silent:
            del self._peers[gateway]
        desks = tuple(peer.desk for peer in self._peers.values() if peer.desk)
        for gateway, peer in self._peers.items():
            self._send(gateway, Heartbeat(self._epoch, peer.tokens_sequence, peer.state_sequence, desks))
        return silent

    def close(self) -> None:
        self.socket.close()

    def _send(self, gateway: str, message: FromEngine) -> None:
        try:
            self.socket.send_multipart((gateway.encode(), encode(message)), zmq.NOBLOCK)
        except zmq.ZMQError:
            return  # gone or overfull: the skipped sequence number tells
