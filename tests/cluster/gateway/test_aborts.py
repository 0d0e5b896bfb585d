"""A client that hangs up ends its request in every state, and leaves nothing behind."""

from __future__ import annotations

import json
import random
import socket
import time
from contextlib import ExitStack, suppress
from http.client import HTTPResponse

import pytest

from cluster.ingress import Ingress
from replicas.config import EngineConfig
from tests.support.local_gateway import local_gateway
from tests.support.sse import complete, parse_stream, read_stream

LONG = {"model": "test", "prompt": "a story without an end", "max_tokens": 1900, "ignore_eos": True}
TALE = "a story without an end " * 150
CHAT = {"model": "test", "messages": [{"role": "user", "content": "tell me"}], "max_tokens": 1800, "ignore_eos": True}


@pytest.fixture(scope="module")
def small(smollm2_path):
    """Two requests at a time and 8 prompt tokens a step: requests queue, and prompts take long."""
    config = EngineConfig(max_running=2, max_batched_tokens=8, max_model_len=2000)
    with local_gateway(smollm2_path, config, "tests.support.builders:parrot") as gateway:
        yield gateway


def send(gateway, path, body, receive_buffer=None):
    """A request on a socket of its own, so that hanging up is one call."""
    host, port = gateway.url.removeprefix("http://").split(":")
    connection = socket.socket()
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.connect((host, int(port)))
    raw = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n"
    connection.sendall(head.encode() + raw)
    return connection


def keeps_delivering(connection):
    """More events come than those that have arrived already."""
    connection.setblocking(False)
    with suppress(BlockingIOError):
        while connection.recv(65536):
            pass
    connection.settimeout(10)
    return b"data: " in connection.recv(65536)


def becomes(gateway, **wanted):
    """Wait until the engine's load is as wanted."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        load = gateway.load()
        if all(getattr(load, name) == value for name, value in wanted.items()):
            return load
        time.sleep(0.01)
    raise AssertionError(f"the engine did not become {wanted}: {gateway.load()}")


def is_idle(gateway):
    load = becomes(gateway, running=0, waiting=0)
    assert load.kv_blocks_free == load.kv_blocks_total
    time.sleep(0.1)
    assert gateway.load().generation_tokens_total == load.generation_tokens_total, "the engine goes on generating"


@pytest.mark.parametrize(
    ("path", "body", "state"),
    [
        ("/v1/completions", LONG | {"stream": False}, {"running": 1}),
        ("/v1/completions", LONG | {"stream": True}, {"running": 1}),
        ("/v1/chat/completions", CHAT | {"stream": True}, {"running": 1}),
        ("/v1/chat/completions", CHAT | {"stream": False}, {"running": 1}),
        ("/v1/completions", LONG | {"prompt": [7] * 1500, "max_tokens": 400}, {"running": 1}),
        ("/v1/completions", LONG | {"prompt": ["a", "b", "c", "d"]}, {"running": 2, "waiting": 1}),
        ("/v1/completions", LONG | {"stream": True, "prompt": ["a", "b", "c", "d"]}, {"running": 2, "waiting": 1}),
        ("/v1/completions", LONG | {"n": 4}, {"running": 2, "waiting": 1}),
        ("/v1/chat/completions", CHAT | {"n": 4, "stream": True}, {"running": 2, "waiting": 1}),
        ("/v1/completions", LONG | {"prompt": [7] * 1500, "max_tokens": 400, "n": 4}, {"running": 1}),
        ("/v1/completions", LONG | {"best_of": 4}, {"running": 2, "waiting": 1}),
        (
            "/v1/completions",
            LONG | {"prompt": [7] * 1500, "max_tokens": 0, "echo": True, "logprobs": 1},
            {"running": 1},
        ),
        (
            "/v1/messages",
            {"model": "test", "system": TALE, "messages": CHAT["messages"], "max_tokens": 800, "stream": True},
            {"running": 1},
        ),
        ("/v1/responses", {"model": "test", "instructions": TALE, "input": "tell me", "stream": True}, {"running": 1}),
    ],
    ids=[
        "whole",
        "stream",
        "chat stream",
        "chat whole",
        "prefilling",
        "batch",
        "batch stream",
        "choices",
        "choices stream",
        "choices that wait for the prompt",
        "best of",
        "scoring",
        "messages stream",
        "responses stream",
    ],
)
def test_hanging_up_ends_the_request(small, path, body, state):
    connection = send(small, path, body)
    becomes(small, **state)
    connection.close()
    is_idle(small)


def test_hanging_up_in_mid_stream(small):
    connection = send(small, "/v1/completions", LONG | {"stream": True})
    received = b""
    while received.count(b"data: ") < 20:
        received += connection.recv(65536)
    connection.close()
    is_idle(small)


def test_hanging_up_in_the_queue_leaves_those_before_alone(small):
    with ExitStack() as stack:
        running = [stack.enter_context(send(small, "/v1/completions", LONG | {"stream": True})) for _ in range(2)]
        becomes(small, running=2)
        queued = send(small, "/v1/completions", LONG)
        becomes(small, waiting=1)
        queued.close()
        becomes(small, waiting=0, running=2)
        assert all(map(keeps_delivering, running))
    is_idle(small)


def test_fifty_random_hang_ups_and_then_a_full_pool_request(small):
    rng = random.Random(5)
    for _ in range(50):
        body = LONG | {
            "stream": rng.random() < 0.5,
            "prompt": [rng.randrange(3000)] * rng.randrange(1, 600),
            "max_tokens": 900,
        }
        connection = send(small, "/v1/completions", body)
        time.sleep(rng.random() * 0.05)
        connection.close()
    is_idle(small)
    with small.client() as client:
        assert complete(client, {"prompt": [5] * 1990, "max_tokens": 10})["usage"]["total_tokens"] == 2000


def test_a_stop_string_ends_the_computation(small):
    with small.client() as client:
        before = small.load().generation_tokens_total
        body = LONG | {"stop": "without", "temperature": 0}
        assert read_stream(client, "/v1/completions", body).texts[0] == "a story "
    is_idle(small)
    assert small.load().generation_tokens_total - before < 500


def ended(gateway, outcome):
    """How many generations the gateway has counted with this outcome."""
    with gateway.client() as client:
        lines = client.get("/metrics").text.splitlines()
    counts = (line.split()[-1] for line in lines if line.startswith("mobula_requests_total") and outcome in line)
    return sum(map(float, counts))


def test_aborts_are_counted(small):
    before = ended(small, "abort")
    connections = [send(small, "/v1/completions", LONG | {"stream": True}) for _ in range(5)]
    becomes(small, running=2, waiting=1)  # and two wait in the gateway
    for connection in connections:
        connection.close()
    is_idle(small)
    assert ended(small, "abort") == before + 5


@pytest.fixture
def tight(smollm2_path, monkeypatch):
    """A gateway whose sockets hold so little that it notices soon when nobody reads."""
    open_socket = Ingress.open_socket

    def open_tight_socket(ingress):
        listener = open_socket(ingress)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # accepted sockets inherit it
        return listener

    monkeypatch.setattr(Ingress, "open_socket", open_tight_socket)
    with local_gateway(smollm2_path, EngineConfig(max_model_len=2000), "tests.support.builders:parrot") as gateway:
        yield gateway


def test_a_slow_reader_slows_only_itself(tight):
    """While nobody reads it, a stream comes to a halt, and others go through. It gets everything once it is read."""
    whole = LONG | {"stream": True, "temperature": 0}
    stuck = send(tight, "/v1/completions", whole, receive_buffer=2048)
    becomes(tight, running=1)
    with tight.client() as client:
        assert read_stream(client, "/v1/completions", {"model": "test", "prompt": "quick", "max_tokens": 50}).done
        becomes(tight, running=0, waiting=0)
        time.sleep(0.2)
        assert ended(tight, "length") == 1, "the gateway took in what nobody reads"
        response = HTTPResponse(stuck)
        response.begin()
        streamed = parse_stream(response.read())
        assert ended(tight, "length") == 2
        assert streamed.done
        assert streamed.texts[0] == complete(client, whole | {"stream": False})["choices"][0]["text"]
    stuck.close()
    is_idle(tight)
