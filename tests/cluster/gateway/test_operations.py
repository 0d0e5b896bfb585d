"""Health, readiness, models and metrics."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from replicas.config import EngineConfig
from tests.support.local_gateway import local_gateway
from tests.support.sse import complete, read_stream


def scrape(client) -> dict[str, float]:
    """Every sample of /metrics, by name and labels without the replica's address."""
    families = text_string_to_metric_families(client.get("/metrics").text)
    return {
        sample.name
        + "".join(f" {key}={value}" for key, value in sorted(sample.labels.items()) if key != "replica"): sample.value
        for family in families
        for sample in family.samples
    }


def test_models_are_listed_and_found(http):
    listed = http.get("/v1/models").json()
    assert [model["id"] for model in listed["data"]] == ["test"]
    assert http.get("/v1/models/test").json() == listed["data"][0]
    assert http.get("/v1/models/other").status_code == 404
    nameless = http.get("/v1/models/")
    assert nameless.status_code == 404
    assert "/v1/models" in nameless.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/health", "/ready", "/v1/models", "/v1/models/test", "/metrics"])
def test_head_is_get_without_the_body(http, path):
    head = http.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == http.get(path).headers["content-type"]


def test_the_schema_describes_every_route_once(http):
    paths = http.get("/openapi.json").json()["paths"]
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models", "/health"} <= paths.keys()
    assert paths["/health"].keys() == {"get"}


def test_ready_names_the_models(http):
    ready = http.get("/ready").json()
    assert ready["status"] == "ready"
    assert [(model["id"], model["max_model_len"]) for model in ready["models"]] == [("test", 512)]


def test_metrics_count_what_usage_states(http):
    before = scrape(http)
    usages = [complete(http, {"prompt": [n] * 40, "max_tokens": n, "cache_salt": "m"})["usage"] for n in (3, 9)]
    usages.append(complete(http, {"prompt": [9] * 40, "max_tokens": 2, "cache_salt": "m"})["usage"])
    after = scrape(http)
    grown = {name: value - before.get(name, 0) for name, value in after.items()}
    assert grown["mobula_prompt_tokens_total model=test"] == sum(usage["prompt_tokens"] for usage in usages) == 120
    assert grown["mobula_generation_tokens_total model=test"] == 14
    assert grown["mobula_prompt_tokens_cached_total model=test"] == 32
    assert grown["mobula_requests_total model=test outcome=length"] == 3
    assert grown["mobula_time_to_first_token_seconds_count model=test"] == 3
    assert grown["mobula_e2e_request_latency_seconds_count model=test"] == 3
    assert grown["mobula_prefix_cache_hits_total"] == 32
    assert (after["mobula_requests_running"], after["mobula_requests_waiting"]) == (0, 0)


def test_the_number_of_series_does_not_grow_with_what_clients_send(http):
    complete(http, {"prompt": "x"})
    http.post("/v1/completions", json={"model": "nobody", "prompt": "x"})
    before = scrape(http)
    for index in range(30):
        complete(http, {"prompt": "x", "user": f"user {index}", "cache_salt": str(index)})
        http.post("/v1/completions", json={"model": f"model {index}", "prompt": "x"})
        http.get(f"/v1/{index}")
    assert scrape(http).keys() == before.keys()


@pytest.mark.parametrize(
    ("model", "body"),
    [
        ("test", {"model": "test", "prompt": "x", "temperature": 9}),
        ("test", {"model": "test", "prompt": [5] * 600}),
        ("test", {"model": "test", "prompt": "x", "nonsense": 1}),
        ("test", {"model": "test"}),
        ("unknown", {"model": "nobody", "prompt": "x"}),
        ("unknown", {"model": ["test"], "prompt": "x"}),
        ("unknown", {"prompt": "x"}),
        ("unknown", []),
    ],
)
def test_refused_requests_are_counted_once(http, model, body):
    name = f"mobula_requests_total model={model} outcome=refused"
    before = scrape(http)
    assert http.post("/v1/completions", json=body).status_code in (400, 404)
    after = scrape(http)
    assert after[name] == before.get(name, 0) + 1
    counters = {key: value for key, value in after.items() if key.startswith("mobula_requests_total ")}
    assert {key for key, value in counters.items() if value != before.get(key, 0)} == {name}
    assert after["mobula_prompt_tokens_total model=test"] == before["mobula_prompt_tokens_total model=test"]


class TestHealth:
    """One short sentence that names the model, whatever is wrong and however long that says it."""

    @pytest.fixture
    def health(self, parrot, http, monkeypatch):
        def answer(check):
            port = SimpleNamespace(check=check)
            monkeypatch.setitem(parrot.service.models, "test", replace(parrot.service.models["test"], port=port))
            return http.get("/health")

        return answer

    @pytest.mark.parametrize("error", [TimeoutError(), RuntimeError("Traceback (most recent call last):\n" * 50)])
    def test_names_the_kind_of_error(self, health, error):
        async def check():
            raise error

        response = health(check)
        assert response.status_code == 503
        assert response.json()["error"]["message"] == (
            f"No engine of test has passed the health check ({type(error).__name__})."
        )

    def test_does_not_wait_without_end(self, health, monkeypatch):
        monkeypatch.setattr("cluster.gateway.app.HEALTH_SECONDS", 0.2)
        started = time.monotonic()
        response = health(asyncio.Event().wait)
        assert response.status_code == 503
        assert "TimeoutError" in response.json()["error"]["message"]
        assert time.monotonic() - started < 3

    def test_readiness_asks_no_engine(self, health, http):
        async def check():
            raise AssertionError

        assert health(check).status_code == 503
        assert http.get("/ready").status_code == 200


class TestEngineFailure:
    @pytest.fixture
    def fragile(self, smollm2_path):
        config = EngineConfig(max_model_len=2000)
        with local_gateway(smollm2_path, config, "tests.support.builders:parrot") as gateway:
            yield gateway

    def test_a_killed_engine_ends_streams_with_an_error_and_health_says_so(self, fragile):
        body = {"model": "test", "prompt": "x y z", "max_tokens": 1900}
        with fragile.client() as client:
            assert client.get("/health").status_code == 200
            with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as response:
                lines = response.iter_lines()
                next(lines)
                os.kill(fragile.engine.pid, signal.SIGKILL)
                rest = list(lines)
            assert '"error"' in [line for line in rest if line][-1]
            assert not any("[DONE]" in line or '"finish_reason":"stop"' in line for line in rest)
            assert client.get("/health").status_code == 503
            assert client.post("/v1/completions", json=body).status_code == 503
            with pytest.raises(AssertionError, match="unavailable"):
                read_stream(client, "/v1/completions", body)

    def test_a_stopped_engine_is_not_healthy(self, fragile, monkeypatch):
        monkeypatch.setattr("cluster.local_port.CHECK_SECONDS", 0.5)
        with fragile.client() as client:
            os.kill(fragile.engine.pid, signal.SIGSTOP)
            assert client.get("/health").status_code == 503
            os.kill(fragile.engine.pid, signal.SIGCONT)
            assert client.get("/health").status_code == 200
