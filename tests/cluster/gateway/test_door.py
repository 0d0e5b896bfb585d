"""What a client sees of limits, priorities and a full server, over HTTP and through the `openai` client."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack

import pytest
from openai import OpenAI, RateLimitError

from cluster.gateway.auth import hash_key
from cluster.gateway.limits import KeyLimits, LimitSettings
from cluster.gateway.service import GatewaySettings
from cluster.gateway.settings import AdmissionSettings, DoorSettings
from replicas.config import EngineConfig
from tests.support.local_gateway import local_gateway
from tests.support.sse import refused

PARROT = "tests.support.builders:parrot"
BODY = {"model": "test", "prompt": [1000] * 10, "max_tokens": 5, "ignore_eos": True}
LONG = BODY | {"max_tokens": 1500, "stream": True}


@pytest.fixture(scope="module")
def limited(smollm2_path):
    limits = {
        "few": KeyLimits(requests_per_minute=3),
        "words": KeyLimits(tokens_per_minute=100),
        "one": KeyLimits(concurrency=1),
        "free": KeyLimits(),
    }
    door = DoorSettings(
        keys=tuple(hash_key(name, name) for name in (*limits, "usual")),
        limits=LimitSettings(KeyLimits(requests_per_minute=1000), limits),
    )
    settings = GatewaySettings(door=door, max_body_bytes=10_000)
    with local_gateway(smollm2_path, EngineConfig(max_model_len=2000), PARROT, settings=settings) as gateway:
        yield gateway


@pytest.fixture
def post(limited):
    with limited.client() as client:

        def ask(key, body=BODY, path="/v1/completions"):
            return client.post(path, json=body, headers={"Authorization": f"Bearer {key}"})

        yield ask


def scraped(gateway, name):
    with gateway.client() as client:
        lines = client.get("/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def test_answers_tell_what_is_left(post):
    headers = post("usual").headers
    assert headers["x-ratelimit-limit-requests"] == "1000"
    assert 990 < int(headers["x-ratelimit-remaining-requests"]) < 1000
    assert headers["x-ratelimit-reset-requests"].endswith("s")
    assert "x-ratelimit-limit-tokens" not in headers
    assert not any(name.startswith("x-ratelimit") for name in post("free").headers)


def test_errors_tell_it_as_well_and_count_as_requests(post):
    before = int(post("usual").headers["x-ratelimit-remaining-requests"])
    response = post("usual", BODY | {"temperature": 9})
    refused(response, 400)
    assert int(response.headers["x-ratelimit-remaining-requests"]) == before - 1


def test_too_many_requests_are_refused_with_the_reason(post, limited):
    for _ in range(3):
        assert post("few").status_code == 200
    response = post("few")
    message = refused(response, 429, words="few may use 3 requests a minute")
    assert "Bearer" not in message
    assert response.json()["error"]["code"] == "rate_limit_exceeded"
    assert 1 <= int(response.headers["retry-after"]) <= 120
    assert scraped(limited, 'mobula_refusals_total{model="unknown",reason="requests_per_minute"}') == 1


def test_the_openai_client_understands(post, limited):
    client = OpenAI(base_url=f"{limited.url}/v1", api_key="words", max_retries=0)
    client.completions.create(model="test", prompt=[1000] * 10, max_tokens=50)
    with pytest.raises(RateLimitError) as error:
        client.completions.create(model="test", prompt=[1000] * 10, max_tokens=50)
    assert error.value.code == "rate_limit_exceeded"
    assert int(error.value.response.headers["retry-after"]) >= 1


@pytest.mark.parametrize("is_streamed", [False, True])
def test_tokens_that_were_reserved_and_not_used_come_back(smollm2_path, is_streamed):
    """The parrot stops after 4 of the 50 tokens that it may say: so 10 of 56 are used, and the sixth finds 50."""
    door = DoorSettings(limits=LimitSettings(KeyLimits(tokens_per_minute=100)))
    body = {"model": "test", "prompt": "x y z x y z", "max_tokens": 50, "stop": "z", "stream": is_streamed}
    settings = GatewaySettings(door=door)
    with local_gateway(smollm2_path, EngineConfig(), PARROT, settings=settings) as gateway, gateway.client() as client:
        for _ in range(5):
            assert client.post("/v1/completions", json=body).status_code == 200
            time.sleep(0.02)  # the tokens come back when the answer is out
        refused(client.post("/v1/completions", json=body), 429, words="50 are left, 56 needed")


def test_one_at_a_time_until_the_stream_has_ended(limited, post):
    with ExitStack() as stack:
        client = stack.enter_context(limited.client())
        headers = {"Authorization": "Bearer one"}
        stream = stack.enter_context(client.stream("POST", "/v1/completions", json=LONG, headers=headers))
        chunks = stream.iter_raw()
        next(chunks)
        refused(post("one"), 429, words="1 requests under way")
        assert post("usual").status_code == 200
    deadline = time.monotonic() + 10
    while post("one").status_code != 200:  # the hang-up has to be noticed
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_bodies_are_bounded_as_configured(post):
    refused(post("free", BODY | {"user": "x" * 10_000}), 413, words="10000 bytes")


@pytest.mark.parametrize(
    ("fields", "tier"),
    [
        ({}, None),
        ({"priority": -3}, None),
        ({"service_tier": "auto"}, "default"),
        ({"service_tier": "default"}, "default"),
        ({"service_tier": "priority", "priority": 2}, "priority"),
        ({"service_tier": "flex"}, "flex"),
    ],
)
def test_priorities_and_tiers_are_taken(post, fields, tier):
    response = post("free", BODY | fields)
    assert response.status_code == 200, response.text
    assert response.json().get("service_tier") == tier


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"priority": 1.5}, "priority"), ({"priority": 2**63}, "priority"), ({"service_tier": "gold"}, "service_tier")],
)
def test_other_priorities_and_tiers_are_refused_by_name(post, fields, param):
    refused(post("free", BODY | fields), 400, param=param)


class TestFullServer:
    """One request runs and one waits in the engine, for seconds; everything else waits in the gateway."""

    @pytest.fixture
    def full(self, smollm2_path):
        door = DoorSettings(
            keys=tuple(hash_key(name, name) for name in ("a", "b", "c")),
            limits=LimitSettings(by_name={"b": KeyLimits(most_urgent=0)}),
            admission={"test": AdmissionSettings(queue_tokens=1000, ttft_seconds=2.0)},
        )
        config = EngineConfig(max_running=1, max_model_len=4000)
        with ExitStack() as stack:
            settings = GatewaySettings(door=door)
            gateway = stack.enter_context(local_gateway(smollm2_path, config, PARROT, settings=settings))
            self.client = stack.enter_context(gateway.client())
            for _ in range(2):
                thread, _ = self.ask_later({"max_tokens": 1900})
                stack.callback(thread.join)
            while gateway.load().waiting == 0:
                time.sleep(0.01)
            yield gateway

    def test_nobody_overtakes_who_may_not(self, full):
        """Key b asks for the lowest number, but has no more than 0."""
        first = self.ask_later({"service_tier": "flex", "priority": 0, "max_tokens": 100}, "c")
        time.sleep(0.1)
        second = self.ask_later({"service_tier": "flex", "priority": -99, "max_tokens": 100}, "b")
        for thread, _ in (first, second):
            thread.join()
        assert first[1][0][1] < second[1][0][1]

    def ask(self, fields, key="a"):
        response = self.client.post("/v1/completions", json=BODY | fields, headers={"Authorization": f"Bearer {key}"})
        return response, time.monotonic()

    def ask_later(self, fields, key="a"):
        answers = []
        thread = threading.Thread(target=lambda: answers.append(self.ask(fields, key)))
        thread.start()
        return thread, answers

    def test_flex_waits_and_lower_numbers_overtake(self, full):
        order = []
        for fields in ({}, {"priority": 0}, {"priority": -5}):
            order.append(self.ask_later(fields | {"service_tier": "flex", "max_tokens": 100}))
            time.sleep(0.1)
        for thread, _ in order:
            thread.join()
        flex, normal, urgent = (answers[0] for _, answers in order)
        assert [answer.status_code for answer, _ in (flex, normal, urgent)] == [200] * 3
        assert urgent[1] < normal[1] < flex[1]

    def test_a_full_queue_refuses(self, full):
        large = {"prompt": [1000] * 400, "max_tokens": 5, "service_tier": "flex"}
        thread, answers = self.ask_later(large)
        time.sleep(0.2)
        response, _ = self.ask(large | {"prompt": [1000] * 200})
        refused(response, 429, words="queue is full")
        assert response.json()["error"]["code"] == "overloaded"
        assert int(response.headers["retry-after"]) >= 1
        assert self.ask({"service_tier": "flex"}, "b")[0].status_code == 200, "another key finds a place"
        thread.join()
        assert answers[0][0].status_code == 200
        assert scraped(full, 'mobula_refusals_total{model="test",reason="queue_full"}') == 1
        assert scraped(full, 'mobula_requests_total{model="test",outcome="refused"}') == 1
