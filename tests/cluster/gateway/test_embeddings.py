"""/v1/embeddings as OpenAI's client sees it."""

from __future__ import annotations

import asyncio
import base64
import json
import time

import httpx
import numpy as np
import pytest
from openai import BadRequestError, NotFoundError, OpenAI

from cluster.errors import ReplicaFullError, ReplicaGoneError
from tests.support.local_embedder import LocalEmbedder

TEXTS = ["A man is eating food.", "Someone has a meal.", "The stock market fell."]


@pytest.fixture(scope="module")
def embedder(minilm_path):
    return LocalEmbedder(minilm_path, dimensions=(64, 128))


@pytest.fixture(scope="module")
def gateway(parrot, embedder):
    """The parrot's gateway with the real MiniLM beside it."""
    opening = parrot.service.open_embedder("minilm", embedder)
    asyncio.run_coroutine_threadsafe(opening, parrot.loop).result()
    yield parrot
    del parrot.service.embedders["minilm"]


@pytest.fixture(scope="module")
def client(gateway):
    return OpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0)


@pytest.fixture
def post(gateway):
    with gateway.client() as http:
        # not `json=`, which cannot send halves of surrogate pairs
        yield lambda **body: http.post("/v1/embeddings", content=json.dumps({"model": "minilm"} | body))


def refusal(response, status=400):
    assert response.status_code == status, response.text
    error = response.json()["error"]
    return error["param"], error["message"]


def metric(gateway, name):
    with gateway.client() as http:
        lines = http.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"mobula_{name}"))


def test_texts_that_mean_the_same_are_near(client):
    answer = client.embeddings.create(model="minilm", input=TEXTS)
    first, same, other = (np.array(item.embedding) for item in answer.data)
    assert [item.index for item in answer.data] == [0, 1, 2]
    assert len(first) == 384
    assert first @ same > first @ other + 0.4
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == 8 + 7 + 7
    assert answer.model == "minilm"


def test_float_and_base64_are_the_same_vector(post):
    floats = post(input=TEXTS[0]).json()["data"][0]["embedding"]
    packed = post(input=TEXTS[0], encoding_format="base64").json()["data"][0]["embedding"]
    assert np.frombuffer(base64.b64decode(packed), "<f4").tolist() == floats


def test_token_ids_are_as_good_as_text(post, gateway):
    with gateway.client() as http:
        ids = http.post("/tokenize", json={"model": "minilm", "prompt": TEXTS[0]}).json()["tokens"]
    expected = post(input=TEXTS[0]).json()["data"]
    assert post(input=ids).json()["data"] == expected
    assert post(input=[ids]).json()["data"] == expected
    bare = post(input=ids[1:-1]).json()["data"]
    assert bare == post(input=TEXTS[0], add_special_tokens=False).json()["data"] != expected


def test_a_large_request_is_one_answer(post, embedder):
    before = embedder.calls
    texts = [f"number {index}" for index in range(150)]
    data = post(input=texts).json()["data"]
    assert embedder.calls - before == 3
    assert data[149]["embedding"] == pytest.approx(post(input=texts[149]).json()["data"][0]["embedding"], abs=1e-6)


def test_dimensions_cut_vectors_where_the_model_allows_it(post):
    whole = np.array(post(input="cut me").json()["data"][0]["embedding"])
    cut = np.array(post(input="cut me", dimensions=64).json()["data"][0]["embedding"])
    assert cut == pytest.approx(whole[:64] / np.linalg.norm(whole[:64]), abs=1e-6)
    assert len(post(input="cut me", dimensions=384).json()["data"][0]["embedding"]) == 384
    param, message = refusal(post(input="cut me", dimensions=65))
    assert (param, "may have 64, 128 or 384" in message) == ("dimensions", True)


def test_texts_that_are_too_long(post):
    text = "cat " * 300
    param, message = refusal(post(input=["short", text]))
    assert (param, "302 tokens, but minilm takes at most 256" in message) == ("input.1", True)
    for truncate, kept in ((-1, 256), (10, 10)):
        answer = post(input=text, truncate_prompt_tokens=truncate).json()
        assert answer["usage"]["prompt_tokens"] == kept
    assert answer["data"] == post(input="cat " * 8).json()["data"]
    assert refusal(post(input=text, truncate_prompt_tokens=257))[0] == "truncate_prompt_tokens"
    assert refusal(post(input=[5] * 257))[0] == "input"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": ["a", 1]}, "input"),
        ({"input": {"text": "a"}}, "input"),
        ({"input": [1, 30522]}, "input.1"),
        ({"input": [1, "a"]}, "input.1"),
        ({"input": [[1], [-1]]}, "input.1.0"),
        ({"input": [True]}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "\ud800"}, "input"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "normalize": False}, "normalize"),
        ({"input": "a", "instruction": "x"}, "instruction"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ],
)
def test_what_is_refused_is_named(post, body, param):
    assert refusal(post(**body))[0] == param


def test_each_model_says_what_it_does_not_do(client):
    with pytest.raises(BadRequestError, match="test makes text"):
        client.embeddings.create(model="test", input="a")
    with pytest.raises(BadRequestError, match="minilm makes embeddings, and no text"):
        client.completions.create(model="minilm", prompt="a")
    with pytest.raises(NotFoundError, match="try one of: minilm"):
        client.embeddings.create(model="ada", input="a")


def test_a_replica_that_dies_is_not_noticed(post, embedder):
    embedder.faults = [ReplicaGoneError("gone")] * 2
    assert post(input="a").status_code == 200
    embedder.faults = [ReplicaGoneError("gone")] * 3
    assert post(input="a").status_code == 503


def test_full_replicas_are_said_to_be_full(post, embedder):
    embedder.faults = [ReplicaFullError("full")]
    response = post(input="a")
    assert response.status_code == 429
    assert response.json()["error"]["code"] == "overloaded"
    assert "Retry-After" in response.headers


def test_who_hangs_up_is_counted_as_such(gateway):
    aborted = 'requests_total{model="minilm",outcome="abort"}'
    before = metric(gateway, aborted)
    with gateway.client() as http, pytest.raises(httpx.ReadTimeout):
        http.post("/v1/embeddings", json={"model": "minilm", "input": ["word " * 200] * 100}, timeout=0.3)
    deadline = time.monotonic() + 20
    while metric(gateway, aborted) == before:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_model_is_listed_checked_and_measured(client, gateway, post):
    assert [model.id for model in client.models.list()] == ["test", "minilm"]
    assert client.models.retrieve("minilm").id == "minilm"
    with gateway.client() as http:
        assert http.get("/health").status_code == 200
        assert http.get("/ready").json()["embedding_models"][0]["dimensions"] == 384
    before = metric(gateway, "embedding_batch_size_count"), metric(gateway, 'prompt_tokens_total{model="minilm"}')
    post(input=["one", "two"])
    assert metric(gateway, "embedding_batch_size_count") == before[0] + 2
    assert metric(gateway, 'prompt_tokens_total{model="minilm"}') == before[1] + 6
    assert metric(gateway, "embedding_max_batch_size") == 1
