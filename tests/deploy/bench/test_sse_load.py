"""The load client reads whole streams, and gives up at once on anything else."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from deploy.bench import sse_load
from deploy.bench.sse_load import Load, Seen, run_load

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunks(*bodies: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(body), body) for body in (*bodies, b""))


USAGE = b'data: {"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}\n\n'
WHOLE = HEAD + chunks(b'data: {"a":1}\n\n', b'data: {"a":2}\n\n', USAGE, b"data: [DONE]\n\n")
BROKEN = HEAD + chunks(b'data: {"a":1}\n\n', b'data: {"error":{}}\n\n')
REFUSED = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\n\r\n{}"
RESET = b""


@pytest.fixture
def load_against() -> Iterator[object]:
    """Runs a load against a server that answers each request with the next of the given answers."""
    listener = socket.create_server(("127.0.0.1", 0))
    open_sockets: list[socket.socket] = []

    def serve(answers: list[bytes], slices: int) -> None:
        client, _ = listener.accept()
        open_sockets.append(client)
        for answer in answers:
            client.recv(65536)
            if answer == RESET:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.close()
                return
            for start in range(0, len(answer), slices):
                client.sendall(answer[start : start + slices])

    def run(*answers: bytes, slices: int = 1 << 20) -> Seen:
        threading.Thread(target=serve, args=(list(answers), slices), daemon=True).start()
        return run_load(Load("127.0.0.1", listener.getsockname()[1], "m", 1, len(answers), 2))

    yield run
    listener.close()
    for client in open_sockets:
        client.close()


@pytest.mark.parametrize("slices", [1 << 20, 7, 1])
def test_counts_tokens_and_events_of_whole_streams(load_against, slices):
    seen = load_against(WHOLE, WHOLE, slices=slices)
    assert (seen.failed, seen.tokens, seen.events, len(seen.ttft)) == (0, 4, 8, 2)


@pytest.mark.parametrize("answer", [REFUSED, BROKEN, RESET, HEAD[:9], HEAD])
def test_anything_else_has_failed(load_against, monkeypatch, answer):
    monkeypatch.setattr(sse_load, "SILENCE_SECONDS", 0.3)
    started = time.monotonic()
    seen = load_against(WHOLE, answer)
    assert (seen.failed, seen.tokens) == (1, 2)
    assert time.monotonic() - started < 5
