"""How the engine's process and the compiling one talk: a connection for each grammar, with one message each way."""

from __future__ import annotations

import socket
import struct

COMPILED, REFUSED = b"c", b"r"

_LENGTH = struct.Struct("<Q")


def send(connection: socket.socket, message: bytes) -> None:
    connection.sendall(_LENGTH.pack(len(message)) + message)


def receive(connection: socket.socket) -> bytes:
    """Raises ConnectionError if the other side has ended."""
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    return _exactly(connection, length)


def _exactly(connection: socket.socket, length: int) -> bytes:
    pieces = bytearray()
    while len(pieces) < length:
        piece = connection.recv(min(length - len(pieces), 1 << 20))
        if not piece:
            raise ConnectionError("the other side has ended")
        pieces += piece
    return bytes(pieces)
