"""A model that wants a BOS token gets exactly one, and it is no part of any text that the caller did not write."""

from __future__ import annotations

import pytest

from replicas.config import EngineConfig
from tests.support.local_gateway import local_gateway
from tests.support.sse import complete, read_stream, refused
from tests.support.tokenizers import write_sentencepiece


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bos")
    write_sentencepiece(folder)
    with local_gateway(folder, EngineConfig(), "tests.support.builders:parrot") as gateway, gateway.client() as client:
        yield client


@pytest.fixture(scope="module")
def bos(client):
    tokens = client.post("/tokenize", json={"prompt": "a", "return_token_strs": True}).json()
    return tokens["token_strs"][0]


def prompt_tokens(client, prompt, **fields):
    return complete(client, {"prompt": prompt, "max_tokens": 1} | fields)["usage"]["prompt_tokens"]


def test_a_prompt_gets_one_unless_it_has_one_or_none_is_wanted(client, bos):
    count = prompt_tokens(client, "a")
    assert prompt_tokens(client, f"{bos}a") == count
    assert prompt_tokens(client, "a", add_special_tokens=False) == count - 1


def test_an_empty_prompt_is_it_alone(client):
    assert prompt_tokens(client, "") == 1
    body = {"model": "test", "prompt": "", "add_special_tokens": False}
    refused(client.post("/v1/completions", json=body), param="prompt")


@pytest.mark.parametrize("logprobs", [None, 1])
def test_an_echo_shows_it_only_if_the_caller_wrote_it(client, bos, logprobs):
    for prompt in ("hello", f"{bos}hello"):
        body = {"model": "test", "prompt": prompt, "echo": True, "max_tokens": 2, "logprobs": logprobs}
        whole = complete(client, body)
        choice = whole["choices"][0]
        assert choice["text"].startswith(prompt)
        assert read_stream(client, "/v1/completions", body).texts[0] == choice["text"]
        if logprobs is not None:
            assert choice["logprobs"]["tokens"][0] == bos
            assert choice["logprobs"]["text_offset"][:2] == [0, len(prompt) - len("hello")]
