"""What the bus's sockets and the gateways' desks have in common."""

from __future__ import annotations

import zmq


def bind(socket: zmq.Socket[bytes], host: str) -> str:
    """Listen at a free port of this host, which may be an IPv6 address. Returns the socket's address."""
    if ":" in host:
        socket.setsockopt(zmq.IPV6, 1)
        host = f"[{host}]"
    socket.bind(f"tcp://{host}:0")
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)
