"""A client that hangs up ends its request in every state, and leaves nothing behind."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from contextlib import ExitStack

import pytest

from replicas.config import EngineConfig
from tests.support.local_gateway import local_gateway
from tests.support.sse import complete, read_stream

LONG = {"model": "test", "prompt": "a story without an end", "max_tokens": 1900, "ignore_eos": True}
CHAT = {"model": "test", "messages": [{"role": "user", "content": "tell me"}], "max_tokens": 1800, "ignore_eos": True}


@pytest.fixture(scope="module")
def small(smollm2_path):
    """Two requests at a time and 8 prompt tokens a step: requests queue, and prompts take long."""
    config = EngineConfig(max_running=2, max_batched_tokens=8, max_model_len=2000)
    with local_gateway(smollm2_path, config, "tests.support.builders:parrot") as gateway:
        yield gateway


def send(gateway, path, body):
    """A request on a socket of its own, so that hanging up is one call."""
    host, port = gateway.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    raw = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n"
    connection.sendall(head.encode() + raw)
    return connection


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
        ("/v1/completions", LONG | {"prompt": ["a", "b", "c", "d"]}, {"running": 2, "waiting": 2}),
        ("/v1/completions", LONG | {"stream": True, "prompt": ["a", "b", "c", "d"]}, {"running": 2, "waiting": 2}),
    ],
    ids=["whole", "stream", "chat stream", "chat whole", "prefilling", "batch", "batch stream"],
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
        running = [stack.enter_context(send(small, "/v1/completions", LONG)) for _ in range(2)]
        becomes(small, running=2)
        queued = send(small, "/v1/completions", LONG)
        becomes(small, waiting=1)
        queued.close()
        becomes(small, waiting=0, running=2)
        assert all(not connection._closed for connection in running)
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


def test_aborts_are_counted(small):
    def aborted():
        with small.client() as client:
            lines = client.get("/metrics").text.splitlines()
        return sum(
            float(line.split()[-1]) for line in lines if line.startswith("mobula_requests_total") and "abort" in line
        )

    before = aborted()
    connections = [send(small, "/v1/completions", LONG | {"stream": True}) for _ in range(5)]
    becomes(small, running=2, waiting=3)
    for connection in connections:
        connection.close()
    is_idle(small)
    assert aborted() == before + 5


def test_a_slow_reader_slows_only_itself(small):
    """One client does not read; another's stream goes through meanwhile."""
    stuck = send(small, "/v1/completions", LONG | {"stream": True})
    becomes(small, running=1)
    results = []
    with small.client() as client:
        body = {"model": "test", "prompt": "quick", "max_tokens": 50}
        thread = threading.Thread(target=lambda: results.append(read_stream(client, "/v1/completions", body)))
        thread.start()
        thread.join(15)
    assert results[0].done
    stuck.close()
    is_idle(small)
