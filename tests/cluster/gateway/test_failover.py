"""Engines die, drain or are poisoned under requests: what the clients get. Real processes, without Ray."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import contextmanager

import pytest

from cluster import dispatch
from cluster.gateway.service import GatewaySettings
from replicas.config import EngineConfig
from tests.support.builders import FragileParrotExecutor
from tests.support.local_gateway import LocalGateway, local_gateway
from tests.support.sse import complete, parse_stream, read_stream, refused

CONFIG = EngineConfig(max_model_len=2000, max_running=8)
PROMPT = "one two three four five six seven eight nine ten"
LONG = {"model": "test", "prompt": PROMPT, "max_tokens": 1800, "ignore_eos": True, "temperature": 0}
POISON = {"model": "test", "prompt": [FragileParrotExecutor.POISON, 300, 301], "max_tokens": 5}


@pytest.fixture
def parrots(smollm2_path):
    settings = GatewaySettings(move_after=0.3)
    with local_gateway(smollm2_path, CONFIG, "tests.support.builders:parrot", settings=settings, engines=2) as gateway:
        yield gateway


def host(gateway: LocalGateway) -> int:
    """The place of the engine that has a request running."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        for place, engine in enumerate(gateway.engines):
            if engine.alive and gateway.load(place).running:
                return place
    raise AssertionError("no engine is busy")


def kill(gateway: LocalGateway, place: int) -> None:
    os.kill(gateway.engines[place].pid, signal.SIGKILL)


@contextmanager
def meanwhile(work):
    """Run `work` in a thread; the list gets its result."""
    results: list = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    yield results
    thread.join()


class TestDeath:
    def test_a_stream_goes_on_as_if_nothing_had_happened(self, parrots):
        with parrots.client() as http:
            whole = complete(http, LONG)
            with meanwhile(lambda: read_stream(http, "/v1/completions", LONG | usage_wanted())) as results:
                kill(parrots, host(parrots))
            (streamed,) = results
            assert streamed.done
            assert streamed.texts[0] == whole["choices"][0]["text"]
            assert streamed.reasons[0] == "length"
            assert {**streamed.usage, "prompt_tokens_details": None} == {
                **whole["usage"],
                "prompt_tokens_details": None,
            }
            assert 'mobula_failovers_total{model="test",reason="lost"} 1.0' in http.get("/metrics").text

    def test_so_does_an_answer_that_is_sent_whole(self, parrots):
        with parrots.client() as http:
            whole = complete(http, LONG)
            with meanwhile(lambda: complete(http, LONG)) as results:
                kill(parrots, host(parrots))
            assert results[0]["choices"] == whole["choices"]

    def test_log_probabilities_go_on_too(self, parrots):
        body = LONG | {"logprobs": 1, "echo": True, "max_tokens": 900}
        with parrots.client() as http:
            whole = complete(http, body)
            with meanwhile(lambda: complete(http, body)) as results:
                kill(parrots, host(parrots))
            assert len(whole["choices"][0]["logprobs"]["tokens"]) == whole["usage"]["total_tokens"]
            assert results[0]["choices"] == whole["choices"]
            assert 'mobula_failovers_total{model="test",reason="lost"} 1.0' in http.get("/metrics").text

    def test_a_stop_string_is_found_across_the_failure(self, parrots):
        words = [f"word{number}" for number in range(250)]
        body = LONG | {"prompt": " ".join(words), "stop": [" ".join(words[190:220])], "max_tokens": 900}
        with parrots.client() as http:
            whole = complete(http, body)
            assert whole["choices"][0]["finish_reason"] == "stop"
            with meanwhile(lambda: read_stream(http, "/v1/completions", body)) as results:
                kill(parrots, host(parrots))
            assert results[0].texts[0] == whole["choices"][0]["text"]
            assert results[0].reasons[0] == "stop"

    def test_prompts_of_a_batch_fail_over_each_for_itself(self, parrots):
        body = LONG | {"prompt": [PROMPT, PROMPT + " eleven", "a b c d"], "max_tokens": 400}
        with parrots.client() as http:
            whole = complete(http, body)
            with meanwhile(lambda: complete(http, body)) as results:
                kill(parrots, host(parrots))
            assert results[0]["choices"] == whole["choices"]

    def test_where_nobody_is_left_a_stream_ends_with_an_error_event(self, parrots, monkeypatch):
        monkeypatch.setattr(dispatch, "RECOVERY_SECONDS", 1.0)
        with parrots.client() as http:
            with http.stream("POST", "/v1/completions", json=LONG | {"stream": True}) as response:
                raw = response.iter_raw()
                received = next(raw)
                for place in range(2):
                    kill(parrots, place)
                streamed = parse_stream(received + b"".join(raw))
            assert streamed.error["message"] == "No replica of this model is up; try again."
            assert not streamed.done
            began = time.monotonic()
            response = http.post("/v1/completions", json=LONG)
            refused(response, 503, words="No replica")
            assert int(response.headers["retry-after"]) >= 1
            assert time.monotonic() - began < 1.0


class TestDrain:
    def test_short_requests_end_where_they_are(self, parrots):
        body = LONG | {"max_tokens": 100}
        with parrots.client() as http:
            with meanwhile(lambda: complete(http, body)) as results:
                parrots.drain(host(parrots))
            assert results[0]["usage"]["completion_tokens"] == 100
            assert "mobula_failovers_total{" not in http.get("/metrics").text

    def test_long_ones_move_and_new_ones_go_elsewhere(self, parrots):
        with parrots.client() as http:
            whole = complete(http, LONG)
            with meanwhile(lambda: read_stream(http, "/v1/completions", LONG)) as results:
                place = host(parrots)
                parrots.drain(place)
                deadline = time.monotonic() + 5
                while parrots.load(place).running:
                    assert time.monotonic() < deadline, "the request stays at the draining replica"
                complete(http, LONG | {"max_tokens": 5})
                assert parrots.load(place).running == 0
            assert results[0].texts[0] == whole["choices"][0]["text"]
            assert 'mobula_failovers_total{model="test",reason="moved"} 1.0' in http.get("/metrics").text

    def test_the_last_replica_keeps_its_requests_to_the_end(self, parrots):
        with parrots.client() as http:
            parrots.drain(1)
            with meanwhile(lambda: complete(http, LONG)) as results:
                assert host(parrots) == 0
                parrots.drain(0)
            assert results[0]["usage"]["completion_tokens"] == 1800


class TestPoison:
    @pytest.fixture
    def fragile(self, smollm2_path):
        builder = "tests.support.builders:fragile_parrot"
        with local_gateway(smollm2_path, CONFIG, builder, engines=3) as gateway:
            yield gateway

    def test_a_request_that_kills_is_stopped_after_two_deaths_and_bystanders_are_served(self, fragile):
        with fragile.client() as http:
            whole = complete(http, LONG)
            results: list[dict] = []
            threads = [threading.Thread(target=lambda: results.append(complete(http, LONG))) for _ in range(30)]
            for thread in threads:
                thread.start()
            host(fragile)
            response = http.post("/v1/completions", json=POISON)
            for thread in threads:
                thread.join()
            assert refused(response, 500) == "The request was stopped: two replicas died when they began with it."
            assert sum(engine.alive for engine in fragile.engines) == 1
            assert [result["choices"] for result in results] == [whole["choices"]] * 30


def usage_wanted() -> dict:
    return {"stream_options": {"include_usage": True}}
