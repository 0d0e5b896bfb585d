"""An engine that is dead or stands still is known for ill, whatever its requests were doing; one that works or rests
is not."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from cluster.engine_client import SILENCE_SECONDS
from replicas.config import EngineConfig
from tests.support.local_gateway import local_gateway
from tests.support.sse import complete

NOTICED_SECONDS = SILENCE_SECONDS + 2.0
RECOVERY_SECONDS = 1.0
LONG = {"model": "test", "prompt": "a story without an end", "max_tokens": 1500, "ignore_eos": True}


@pytest.fixture
def gateway(smollm2_path, monkeypatch):
    """One request runs, one waits in the engine, a third in the gateway."""
    monkeypatch.setattr("cluster.dispatch.RECOVERY_SECONDS", RECOVERY_SECONDS)
    config = EngineConfig(max_running=1, max_model_len=2000)
    with local_gateway(smollm2_path, config, "tests.support.builders:parrot") as gateway:
        yield gateway


def ask(gateway, answers, is_streamed):
    """Post, and note the status, how the answer ended and when."""
    with gateway.client() as client:
        response = client.post("/v1/completions", json=LONG | {"stream": is_streamed})
        answers.append((response.status_code, response.text, time.monotonic()))


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_lost_engine_is_told_to_everybody(gateway, fault):
    answers = []
    threads = [
        threading.Thread(target=ask, args=(gateway, answers, is_streamed)) for is_streamed in (True, False, True)
    ]
    for thread in threads:
        thread.start()
    while gateway.load().waiting == 0:
        time.sleep(0.01)
    time.sleep(0.1)
    os.kill(gateway.engine.pid, fault)
    lost = time.monotonic()
    with gateway.client() as client:
        while client.get("/health").status_code == 200:
            assert time.monotonic() < lost + NOTICED_SECONDS
            time.sleep(0.05)
        assert client.get("/ready").status_code == 200
        for thread in threads:
            thread.join()
        for status, text, when in answers:
            assert status == 503 or (status == 200 and text.rstrip().rsplit("data: ", 1)[-1].startswith('{"error"'))
            assert "[DONE]" not in text
            assert when < lost + NOTICED_SECONDS + RECOVERY_SECONDS + 1
        started = time.monotonic()
        response = client.post("/v1/completions", json=LONG)
        assert (response.status_code, time.monotonic() - started < 1) == (503, True)
        assert int(response.headers["retry-after"]) >= 1
        assert client.get("/health").status_code == 503


def test_an_engine_that_works_or_rests_is_healthy(gateway):
    answers = []
    threads = [threading.Thread(target=ask, args=(gateway, answers, False)) for _ in range(3)]
    for thread in threads:
        thread.start()
    with gateway.client() as client:
        while any(thread.is_alive() for thread in threads):
            assert client.get("/health").status_code == 200
        assert [status for status, _, _ in answers] == [200] * 3
        time.sleep(SILENCE_SECONDS + 1)  # rests for longer than an engine may be silent
        assert client.get("/health").status_code == 200
        complete(client, LONG | {"max_tokens": 5})
