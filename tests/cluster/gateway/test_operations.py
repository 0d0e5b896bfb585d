"""Health, readiness, models and metrics."""

from __future__ import annotations

import os
import signal

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
