"""Every request is counted once, by what became of it, wherever it was then; and nothing that a client says becomes a
label."""

from __future__ import annotations

import json
import random
import socket
import string
import threading
import time
from collections import Counter

import pytest
from prometheus_client.parser import text_string_to_metric_families

from replicas.config import EngineConfig
from tests.support.local_gateway import local_gateway
from tests.support.sse import complete, read_stream, refused

LONG = {"model": "test", "prompt": "a story without an end", "max_tokens": 1500, "ignore_eos": True, "stream": True}
OUTCOMES = ("stop", "length", "abort", "error", "refused")
ENGINE_GAUGES = ("requests_running", "requests_waiting", "waiting_prefill_tokens")
GAUGES = (*ENGINE_GAUGES, "gateway_queue_tokens", "gateway_queue_requests")


@pytest.fixture(scope="module")
def small(smollm2_path):
    """Two run, one waits in the engine, the others in the gateway."""
    config = EngineConfig(max_running=2, max_model_len=2000)
    with local_gateway(smollm2_path, config, "tests.support.builders:parrot") as gateway:
        yield gateway


@pytest.fixture
def client(small):
    with small.client() as client:
        yield client


def samples(client):
    """Every sample, by name and labels; checks on the way that the text is what Prometheus reads."""
    response = client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    found, families = {}, Counter()
    for family in text_string_to_metric_families(response.text):
        families[family.name] += 1
        assert family.documentation
        assert family.type != "unknown"
        for sample in family.samples:
            key = (sample.name, *sorted(sample.labels.items()))
            assert key not in found, "a series is there twice"
            found[key] = sample.value
    assert set(families.values()) == {1}, "a family is there twice"
    return found


def total(found, name, **labels):
    """The sum over all series of one name that have these labels."""
    return sum(
        value
        for (sample, *pairs), value in found.items()
        if sample == f"mobula_{name}" and labels.items() <= dict(pairs).items()
    )


def becomes(client, *names, values):
    """Wait until these samples are as wanted: load reports come every 20 ms."""
    deadline = time.monotonic() + 20
    while [total(now := samples(client), name) for name in names] != values:
        assert time.monotonic() < deadline, f"{names} do not become {values}"
        time.sleep(0.02)
    return now


def grown(client, before):
    """How the outcomes have changed, once nothing is under way any more."""
    now = becomes(client, *GAUGES, values=[0] * len(GAUGES))
    counts = {outcome: total(now, "requests_total", outcome=outcome) for outcome in OUTCOMES}
    changes = {outcome: count - total(before, "requests_total", outcome=outcome) for outcome, count in counts.items()}
    return {outcome: change for outcome, change in changes.items() if change}


def hang_up_on(gateway, bodies):
    """Requests whose clients leave after a while."""
    host, port = gateway.url.removeprefix("http://").split(":")
    connections = []
    for body in bodies:
        connection = socket.create_connection((host, int(port)))
        raw = json.dumps(body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n\r\n"
        connection.sendall(head.encode() + raw)
        connections.append(connection)
    return connections


def test_aborts_are_counted_in_the_engine_and_in_both_queues(small, client):
    before = samples(client)
    connections = hang_up_on(small, [LONG] * 5)
    states = ("requests_running", "requests_waiting", "gateway_queue_requests")
    assert total(becomes(client, *states, values=[2, 1, 2]), "gateway_queue_tokens") > 2 * 5
    for connection in connections:
        connection.close()
    assert grown(client, before) == {"abort": 5}


def test_errors_of_the_caller_are_counted_once_each(client):
    before = samples(client)
    for fields in ({"n": 200}, {"temperature": 9}, {"model": "other"}, {"stop": [""]}, {"prompt": [1] * 5000}):
        refused(client.post("/v1/completions", json=LONG | fields), 404 if "model" in fields else 400)
    assert grown(client, before) == {"refused": 5}


def test_each_prompt_of_a_batch_counts(client):
    """The rule for several choices: one generation, one count."""
    before = samples(client)
    complete(client, {"prompt": ["a b", "c d", "e f"], "max_tokens": 4})
    assert grown(client, before) == {"length": 3}


def test_an_abort_of_a_batch_counts_each_prompt(small, client):
    before = samples(client)
    (connection,) = hang_up_on(small, [LONG | {"prompt": ["a b", "c d", "e f", "g h"]}])
    becomes(client, "requests_running", values=[2])
    connection.close()
    assert grown(client, before) == {"abort": 4}


def test_the_sums_agree_with_what_clients_were_told(client):
    """Prompt tokens: gateway = usage. The engine counts them too, those of aborted requests and of what was computed
    beyond a stop string included, so never less."""
    before = samples(client)
    usages = [complete(client, {"prompt": "x y z " * n, "max_tokens": 5, "stop": "z"})["usage"] for n in range(1, 8)]
    streamed = read_stream(
        client, "/v1/completions", LONG | {"max_tokens": 20, "stream_options": {"include_usage": True}}
    )
    usages.append(streamed.usage)
    grown(client, before)
    after = samples(client)
    for name, engine in (("prompt_tokens", "engine_prompt_tokens"), ("generation_tokens", "engine_generation_tokens")):
        told = sum(usage["completion_tokens" if name.startswith("gen") else name] for usage in usages)
        assert total(after, f"{name}_total") - total(before, f"{name}_total") == told
        assert total(after, f"{engine}_total") - total(before, f"{engine}_total") >= told
    prompts = total(after, "engine_prompt_tokens_total") - total(before, "engine_prompt_tokens_total")
    assert prompts == sum(usage["prompt_tokens"] for usage in usages)


def test_gauges_are_never_negative_and_series_never_more(small, client):
    """Under a mixture of everything, with names, users and ids drawn at random."""
    rng = random.Random(4)

    def word():
        return "".join(rng.choices(string.printable, k=rng.randrange(1, 40)))

    complete(client, {"prompt": "x", "max_tokens": 1})
    client.post("/v1/completions", json=LONG | {"model": word()})
    before, worst, done = samples(client), [], threading.Event()

    def watch():
        with small.client() as other:
            while not done.is_set():
                now = samples(other)
                worst.append(min(total(now, gauge) for gauge in GAUGES))

    watcher = threading.Thread(target=watch)
    watcher.start()
    for index in range(100):
        fields = {"user": word(), "metadata": {word(): word()}, "cache_salt": word(), "max_tokens": 3, "stream": False}
        headers = {"x-request-id": str(index), "x-session-id": str(index), "user-agent": f"agent {index}"}
        body = LONG | fields | ({"model": word()} if index % 3 == 0 else {}) | ({word(): 1} if index % 7 == 0 else {})
        client.post("/v1/completions", json=body, headers=headers)
        client.get(f"/v1/{index}")
        if index % 10 == 0:
            (connection,) = hang_up_on(small, [LONG])
            connection.close()
    done.set()
    watcher.join()
    grown(client, before)
    assert min(worst) == 0
    missing = {("outcome", outcome) for outcome in OUTCOMES}
    new = samples(client).keys() - before.keys()
    assert all(missing & set(labels) for _, *labels in new), new
