"""The cheapest client that can still be believed: raw sockets, one thread, events counted as they arrive.

Run as a process of its own (`python -m deploy.bench.sse_load`), so that the measured server has its interpreter to
itself. One JSON object on standard input says what to do, one on standard output what was seen.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from dataclasses import asdict, dataclass, field

EVENT = b"data: "
END = b"data: [DONE]"
RECEIVE_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Load:
    """`concurrency` connections, each of which sends `requests` streaming chat requests one after another."""

    host: str
    port: int
    model: str
    concurrency: int
    requests: int
    max_tokens: int
    stop: tuple[str, ...] = ()


@dataclass(slots=True)
class Seen:
    """Times in seconds. `tokens` is what usage stated, `events` the SSE events that arrived."""

    ttft: list[float] = field(default_factory=list)
    tokens: int = 0
    events: int = 0
    seconds: float = 0.0
    failed: int = 0


@dataclass(slots=True)
class _Connection:
    socket: socket.socket
    left: int
    sent: float = 0.0
    events: int = 0
    tail: bytes = b""


def run_load(load: Load) -> Seen:
    """Send everything and read every stream to its end."""
    raw = _request(load)
    seen, selector = Seen(), selectors.DefaultSelector()
    connections = [_Connection(_connect(load), load.requests) for _ in range(load.concurrency)]
    started = time.perf_counter()
    for connection in connections:
        selector.register(connection.socket, selectors.EVENT_READ, connection)
        _send(connection, raw)
    open_connections = len(connections)
    while open_connections:
        for key, _ in selector.select():
            connection = key.data
            if _receive(connection, seen):
                continue
            if connection.left and connection.tail:
                _send(connection, raw)
                continue
            selector.unregister(connection.socket)
            connection.socket.close()
            open_connections -= 1
    seen.seconds = time.perf_counter() - started
    return seen


def _receive(connection: _Connection, seen: Seen) -> bool:
    """Take in what has arrived. False once the response, or the connection, has ended."""
    data = connection.socket.recv(RECEIVE_BYTES)
    if not data:
        seen.failed += 1
        connection.tail = b""
        return False
    window = connection.tail + data
    new = window.count(EVENT) - connection.tail.count(EVENT)
    if new and not connection.events:
        seen.ttft.append(time.perf_counter() - connection.sent)
    connection.events += new
    seen.events += new
    connection.tail = window[-4096:]
    if END not in connection.tail or not connection.tail.endswith(b"0\r\n\r\n"):
        return True
    seen.tokens += int(connection.tail.rsplit(b'"completion_tokens":', 1)[1].split(b",", 1)[0])
    return False


def _send(connection: _Connection, raw: bytes) -> None:
    connection.left -= 1
    connection.events, connection.tail = 0, b""
    connection.sent = time.perf_counter()
    connection.socket.sendall(raw)


def _connect(load: Load) -> socket.socket:
    connection = socket.create_connection((load.host, load.port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _request(load: Load) -> bytes:
    body = json.dumps(
        {
            "model": load.model,
            "messages": [{"role": "user", "content": "Tell me all that you know of rays, mantas and mobulas."}],
            "max_tokens": load.max_tokens,
            "ignore_eos": True,
            "stop": list(load.stop),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {load.host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def main() -> None:
    spec = json.loads(sys.stdin.readline())
    print(json.dumps(asdict(run_load(Load(**spec)))))


if __name__ == "__main__":
    main()
