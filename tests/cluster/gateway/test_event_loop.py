"""The largest bodies that a client may send do not hold up anyone else: the event loop goes on turning."""

from __future__ import annotations

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.sse import complete, refused

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HELLO = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}

pytestmark = pytest.mark.usefixtures("alive")

STOPS = [chr(97 + index) * 512 + "z" * 512 for index in range(16)]
HOSTILE = {
    "stop strings": (COMPLETIONS, {"prompt": ["x"] * 128, "max_tokens": 1, "stop": STOPS}),
    "short stop strings": (CHAT, HELLO | {"stop": ["s"] * 500_000}),
    "unknown fields": (CHAT, HELLO | {f"field {number}": 1 for number in range(200_000)}),
    "text parts": (CHAT, HELLO | {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 100_000}]}),
    "messages": (CHAT, HELLO | {"messages": [{"role": 7}] * 100_000}),
    "tools": (CHAT, HELLO | {"tools": [{}] * 500_000}),
    "texts": (COMPLETIONS, {"prompt": ["x"] * 500_000}),
    "token ids": (COMPLETIONS, {"prompt": [5] * 1_300_000}),
    "long text": (COMPLETIONS, {"prompt": "word " * 800_000}),
    "choices": (COMPLETIONS, {"prompt": "x", "n": 10**9}),
    "many allowed choices": (
        COMPLETIONS,
        {"prompt": "x", "n": 128, "max_tokens": 1, "allowed_token_ids": list(range(16_384))},
    ),
    "biases": (CHAT, HELLO | {"logit_bias": {str(number): 1 for number in range(100_000)}}),
    "bad words": (CHAT, HELLO | {"bad_words": ["word " * 200] * 128}),
    "many bad words": (CHAT, HELLO | {"bad_words": ["word"] * 500_000}),
    "long chat": (CHAT, HELLO | {"messages": [{"role": "user", "content": "<word " * 650_000}]}),
}
SERVED = ("stop strings", "many allowed choices", "bad words")


class Ticker:
    """How long the gateway's event loop stood still at the most."""

    def __init__(self, gateway):
        self.longest = 0.0
        self._task = asyncio.run_coroutine_threadsafe(self._tick(), gateway.loop)

    async def _tick(self):
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            self.longest, last = max(self.longest, now - last), now

    def stop(self):
        time.sleep(0.1)  # until it has had its turn once more
        self._task.cancel()
        return self.longest


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_request_does_not_hold_up_others(http, parrot, name):
    path, body = HOSTILE[name]
    raw = json.dumps({"model": "test"} | body, separators=(",", ":"))
    assert len(raw) < parrot.service.settings.max_body_bytes
    started = time.perf_counter()
    json.loads(raw, object_pairs_hook=dict)
    reading = time.perf_counter() - started
    ticker = Ticker(parrot)
    response = http.post(path, content=raw)
    assert ticker.stop() < 0.2 + 3 * reading, "more than it takes to read the JSON"
    if name not in SERVED:
        refused(response)


def test_small_requests_are_served_while_hostile_ones_arrive(http, parrot):
    def small_request():
        started = time.monotonic()
        with parrot.client() as client:
            complete(client, {"prompt": "x", "max_tokens": 1})
        return time.monotonic() - started

    with ThreadPoolExecutor(4) as pool:
        times = []
        for path, body in HOSTILE.values():
            hostile = pool.submit(http.post, path, json={"model": "test"} | body)
            times += [pool.submit(small_request) for _ in range(3)]
            assert hostile.result().status_code in (200, 400)
        assert max(waited.result() for waited in times) < 2
