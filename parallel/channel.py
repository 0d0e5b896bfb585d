"""Byte messages from rank 0 to every other rank and back, over sockets that notice when the other end is gone.

Collectives can't do this: they need a fixed size, and nobody may wait in one for a process that has died.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

_LENGTH = struct.Struct("<I")
_GREETING = struct.Struct("<iI")
_ACCEPT_POLL_SECONDS = 0.1
_GREETING_SECONDS = 5.0


class ChannelClosedError(ConnectionError):
    """The other end is gone."""


class Channel:
    """One end of a connection between two ranks; whole messages in, whole messages out."""

    def __init__(self, connection: socket.socket) -> None:
        if connection.family == socket.AF_INET:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(None)
        self._connection = connection
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    @classmethod
    def connect(cls, host: str, port: int, rank: int, purpose: int) -> Channel:
        """Call rank 0, which awaits this with `accept_channels`."""
        connection = socket.create_connection((host, port))
        connection.sendall(_GREETING.pack(rank, purpose))
        return cls(connection)

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, message: bytes) -> None:
        """Raises ChannelClosedError if nobody can receive it any more."""
        try:
            self._connection.sendall(_LENGTH.pack(len(message)) + message)
        except OSError as error:
            raise ChannelClosedError(str(error)) from error

    def receive(self) -> bytes:
        """Wait for the next message. Raises ChannelClosedError at the end."""
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        return self._read(length)

    def ready(self, seconds: float = 0.0) -> bool:
        """Whether a message, or the end, arrives within this time."""
        return bool(self._poll.poll(seconds * 1000))

    def close(self) -> None:
        self._connection.close()

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            try:
                part = self._connection.recv(count - len(data))
            except OSError as error:
                raise ChannelClosedError(str(error)) from error
            if not part:
                raise ChannelClosedError("the other end is gone")
            data += part
        return data


def accept_channels(
    listener: socket.socket, ranks: range, purposes: range, seconds: float, check: Callable[[], None]
) -> Mapping[tuple[int, int], Channel]:
    """Wait until each of these ranks has called for each purpose; by (rank, purpose). `check` is called again and
    again and may raise, if it knows that somebody will never call."""
    expected = {(rank, purpose) for rank in ranks for purpose in purposes}
    channels: dict[tuple[int, int], Channel] = {}
    deadline = time.monotonic() + seconds
    listener.settimeout(_ACCEPT_POLL_SECONDS)
    while missing := expected - channels.keys():
        check()
        if time.monotonic() > deadline:
            raise TimeoutError(f"ranks {sorted({rank for rank, _ in missing})} have not joined within {seconds:.0f} s")
        with suppress(TimeoutError):
            connection, _ = listener.accept()
            caller = _greeting(connection)
            if caller in missing:
                channels[caller] = Channel(connection)
            else:
                connection.close()
    return channels


def _greeting(connection: socket.socket) -> tuple[int, int] | None:
    """Who calls, and for which purpose; None for somebody who is none of ours."""
    connection.settimeout(_GREETING_SECONDS)
    try:
        rank, purpose = _GREETING.unpack(connection.recv(_GREETING.size, socket.MSG_WAITALL))
    except (OSError, struct.error):
        return None
    return rank, purpose
