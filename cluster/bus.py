"""The engine's end of the bus: one socket, one token stream and one state stream to every gateway.

ROUTER to DEALER and never PUB to SUB, which drops silently. A message that cannot be sent is lost but its sequence
number is spent, so the gateway notices, and takes the tokens from the unary call's summary instead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec
import zmq

from cluster.codec import (
    Abort,
    FromEngine,
    Heartbeat,
    Hello,
    State,
    TokenRow,
    Tokens,
    Welcome,
    decode_from_gateway,
    encode,
)
from replicas.messages import LoadReport

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 1.0
SILENT_PEER_SECONDS = 15.0
STATE_SECONDS = 0.02
MAX_UNSENT_MESSAGES = 100_000


class _Peer:
    """What the engine knows of one gateway."""

    __slots__ = ("heard", "state_sequence", "tokens_sequence")

    def __init__(self, now: float) -> None:
        self.heard = now
        self.tokens_sequence = 0
        self.state_sequence = 0


class BusServer:
    """Not thread-safe: it lives in the engine's loop, which says what time it is."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], host: str, epoch: str) -> None:
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.setsockopt(zmq.SNDHWM, MAX_UNSENT_MESSAGES)
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a gateway that comes back is the same gateway
        self.socket.setsockopt(zmq.HEARTBEAT_IVL, 2000)
        self.socket.setsockopt(zmq.LINGER, 0)
        if ":" in host:
            self.socket.setsockopt(zmq.IPV6, 1)
            host = f"[{host}]"
        self.socket.bind(f"tcp://{host}:0")
        self.address = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._epoch = epoch
        self._peers: dict[str, _Peer] = {}
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
            if gateway not in self._peers:
                self._peers[gateway] = _Peer(now)
            self._peers[gateway].heard = now
            match message:
                case Hello():
                    self._send(gateway, Welcome(self._epoch))
                case Abort(request_ids):
                    aborted += request_ids

    def publish(self, rows_by_gateway: dict[str, list[TokenRow]]) -> None:
        """One step's tokens, one message to each gateway."""
        for gateway, rows in rows_by_gateway.items():
            peer = self._peers.get(gateway)
            if peer is None:
                continue
            peer.tokens_sequence += 1
            self._send(gateway, Tokens(self._epoch, peer.tokens_sequence, tuple(rows)))

    def report(self, load: Callable[[], LoadReport], now: float, resting: bool) -> None:
        """Tell all gateways the load, at most every 20 ms unless the engine comes to rest."""
        due = now - self._last_state >= STATE_SECONDS or (resting and not self._rested)
        self._rested = resting
        if not due:
            return
        self._last_state = now
        state = load()
        for gateway, peer in self._peers.items():
            peer.state_sequence += 1
            self._send(gateway, State(self._epoch, peer.state_sequence, state))

    def keep_alive(self, now: float) -> list[str]:
        """Send heartbeats when due. Returns the gateways that have fallen silent and are now forgotten."""
        if now - self._last_heartbeat < HEARTBEAT_SECONDS:
            return []
        self._last_heartbeat = now
        silent = [name for name, peer in self._peers.items() if now - peer.heard > SILENT_PEER_SECONDS]
        for gateway in silent:
            del self._peers[gateway]
        for gateway, peer in self._peers.items():
            self._send(gateway, Heartbeat(self._epoch, peer.tokens_sequence, peer.state_sequence))
        return silent

    def close(self) -> None:
        self.socket.close()

    def _send(self, gateway: str, message: FromEngine) -> None:
        try:
            self.socket.send_multipart((gateway.encode(), encode(message)), zmq.NOBLOCK)
        except zmq.ZMQError:
            return  # gone or overfull: the skipped sequence number tells
