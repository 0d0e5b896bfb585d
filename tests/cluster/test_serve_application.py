"""The whole house on a real Ray cluster: the application as `mobula serve` deploys it, real processes, real clients."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time

import httpx
import pytest
from openai import BadRequestError, OpenAI

from cluster.gateway.deployment import gateway_deployment
from cluster.gateway.service import GatewaySettings
from cluster.ingress import Ingress
from cluster.replica import ReplicaSpec, replica_deployment
from deploy.serve import SERVE_LOGGING
from replicas.config import EngineConfig
from tests.support.processes import ray_processes
from tests.support.sse import complete, parse_stream

pytestmark = pytest.mark.slow

LONG = {"model": "parrot", "prompt": "a story without an end", "max_tokens": 1800, "ignore_eos": True}


@pytest.fixture(scope="module")
def url(serve_cluster, smollm2_path):
    """SmolLM2 itself on one replica, and beside it the parrot on two."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        ingress = Ingress("gateway", "127.0.0.1", probe.getsockname()[1])
    real = EngineConfig(dtype="float32", kv_cache_memory=256 * 1024**2, max_running=16)
    model = replica_deployment("model-smollm2", 1, real).bind(ReplicaSpec(str(smollm2_path), real))
    repeating = EngineConfig(max_running=8, max_model_len=2000)
    parrot = replica_deployment("model-parrot", 2, repeating).bind(
        ReplicaSpec(str(smollm2_path), repeating, "tests.support.builders:parrot")
    )
    application = gateway_deployment(1).bind({"smollm2": model, "parrot": parrot}, GatewaySettings(), ingress)
    serve_cluster.run(application, name="test", logging_config=SERVE_LOGGING)
    yield f"http://127.0.0.1:{ingress.port}"
    serve_cluster.delete("test")


@pytest.fixture
def http(url):
    with httpx.Client(base_url=url, timeout=120) as client:
        yield client


def engine_pids() -> list[int]:
    """The engine processes of this test's cluster."""
    return ray_processes("-m cluster.engine_process")


def metric(http: httpx.Client, name: str) -> float:
    lines = http.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith((name + "{", name + " ")))


def eventually(check, seconds=30):
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, f"{check} did not become true"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def client(url):
    return OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)


class TestOpenAIClient:
    def test_a_chat_makes_sense_streamed_and_whole(self, client):
        asked = {
            "model": "smollm2",
            "temperature": 0,
            "max_tokens": 24,
            "messages": [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}],
        }
        whole = client.chat.completions.create(**asked).choices[0].message.content
        chunks = client.chat.completions.create(**asked, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole
        assert "Paris" in whole

    def test_models_usage_and_errors(self, client):
        assert [model.id for model in client.models.list()] == ["smollm2", "parrot"]
        answer = client.completions.create(model="smollm2", prompt=["One, two,", "Red, green,"], max_tokens=4)
        assert [choice.index for choice in answer.choices] == [0, 1]
        assert answer.usage.completion_tokens == 8
        with pytest.raises(BadRequestError, match="maximum context length is 2000 tokens"):
            client.completions.create(model="parrot", prompt="x", max_tokens=10_000)

    def test_seeded_samples_repeat_on_either_replica_and_under_load(self, client):
        def sample():
            return (
                client.completions.create(model="smollm2", prompt="My name is", max_tokens=12, seed=7).choices[0].text
            )

        alone = sample()
        results: list[str] = []
        threads = [threading.Thread(target=lambda: results.append(sample())) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [alone] * 6


def test_both_replicas_serve(http):
    threads = [threading.Thread(target=lambda: complete(http, LONG | {"max_tokens": 300})) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = [line for line in http.get("/metrics").text.splitlines() if line.startswith("mobula_engine_steps_total{")]
    assert sum(float(line.split()[-1]) > 0 for line in lines) >= 2


def test_hanging_up_reaches_the_engine_through_serve(http):
    eventually(lambda: metric(http, "mobula_requests_running") == 0)
    before = metric(http, "mobula_engine_generation_tokens_total")
    with pytest.raises(httpx.ReadTimeout):
        http.post("/v1/completions", json=LONG, timeout=0.3)
    eventually(lambda: metric(http, "mobula_requests_running") == 0)
    assert metric(http, "mobula_engine_generation_tokens_total") - before < 1000


def test_health_crosses_the_step_loops(http):
    assert http.get("/health").status_code == 200


def test_killed_engines_are_replaced_and_a_stream_goes_on_with_the_new_ones(http):
    """Both parrots' engines die in mid-stream, and SmolLM2's with them."""
    hello = {"model": "smollm2", "prompt": "Hello", "max_tokens": 4, "temperature": 0}
    smollm2, whole = complete(http, hello), complete(http, LONG)
    before = engine_pids()
    with http.stream("POST", "/v1/completions", json=LONG | {"stream": True}) as response:
        raw = response.iter_raw()
        received = next(raw)
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        streamed = parse_stream(received + b"".join(raw))
    assert streamed.done
    assert streamed.texts[0] == whole["choices"][0]["text"]
    eventually(lambda: http.get("/health").status_code == 200, seconds=90)
    eventually(lambda: len(engine_pids()) == len(before), seconds=60)
    assert set(engine_pids()).isdisjoint(before)
    eventually(lambda: metric(http, "mobula_replicas_open") == 3)
    assert complete(http, hello)["choices"] == smollm2["choices"]
