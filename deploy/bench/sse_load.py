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
STATUS = b"HTTP/1.1 200 "
LAST_CHUNK = b"\r\n0\r\n\r\n"
RECEIVE_BYTES = 1 << 18
SILENCE_SECONDS = 60.0  # after so long without a byte from anyone, the rest has failed


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
    """Times in seconds. `tokens` is what usage stated, `events` the SSE events that arrived, `failed` the connections
    on which something other than whole streams came."""

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
    """Send everything and read every stream to its end. A connection on which anything goes wrong is given up."""
    raw = _request(load)
    seen, selector = Seen(), selectors.DefaultSelector()
    connections = [_Connection(_connect(load), load.requests) for _ in range(load.concurrency)]
    started = time.perf_counter()
    for connection in connections:
        selector.register(connection.socket, selectors.EVENT_READ, connection)
        _send(connection, raw)
    while selector.get_map() and (ready := selector.select(SILENCE_SECONDS)):
        for key, _ in ready:
            if not _go_on(key.data, raw, seen):
                selector.unregister(key.fileobj)
                key.data.socket.close()
    seen.failed += len(selector.get_map())  # nothing more came on these
    for key in selector.get_map().values():
        key.data.socket.close()
    selector.close()
    seen.seconds = time.perf_counter() - started
    return seen


def _go_on(connection: _Connection, raw: bytes, seen: Seen) -> bool:
    """Take in what has arrived, and send the next request after a response. False once nothing is left to do."""
    try:
        if not _receive(connection, seen):
            return True
        if connection.left:
            _send(connection, raw)
            return True
    except OSError:
        seen.failed += 1
    return False


def _receive(connection: _Connection, seen: Seen) -> bool:
    """Whether the response has come to its end. Raises OSError if that is not the end of a whole stream."""
    data = connection.socket.recv(RECEIVE_BYTES)
    if not data:
        raise ConnectionError("the connection was closed within a response")
    window = connection.tail + data
    if not connection.events and not STATUS.startswith(window[: len(STATUS)]):
        raise ConnectionError("the status is not 200")
    new = window.count(EVENT) - connection.tail.count(EVENT)
    if new and not connection.events:
        seen.ttft.append(time.perf_counter() - connection.sent)
    connection.events += new
    seen.events += new
    connection.tail = window[-4096:]
    if not connection.tail.endswith(LAST_CHUNK):
        return False
    if END not in connection.tail:
        raise ConnectionError("the stream ended with an error")
    seen.tokens += int(connection.tail.rsplit(b'"completion_tokens":', 1)[1].split(b",", 1)[0])
    return True


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
