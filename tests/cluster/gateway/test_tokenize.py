"""/tokenize tells exactly what the model is given, and /detokenize takes it back."""

from __future__ import annotations

import json

import pytest

HELLO = [{"role": "user", "content": "Hello!"}]


@pytest.fixture
def tokenize(http):
    # not `json=`, which cannot send halves of surrogate pairs
    return lambda **body: http.post("/tokenize", content=json.dumps(body))


def refusal(response):
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    return error["param"], error["message"]


def test_a_prompt_and_back(tokenize, http):
    answer = tokenize(model="test", prompt="naïve 東京 🙂").json()
    assert answer["count"] == len(answer["tokens"])
    assert (answer["max_model_len"], answer["token_strs"]) == (512, None)
    assert http.post("/detokenize", json={"tokens": answer["tokens"]}).json() == {"prompt": "naïve 東京 🙂"}


def test_counts_are_those_of_usage(tokenize, http):
    for path, prompt in (("/v1/chat/completions", {"messages": HELLO}), ("/v1/completions", {"prompt": "Hello"})):
        usage = http.post(path, json={"model": "test", "max_tokens": 1} | prompt).json()["usage"]
        assert tokenize(**prompt).json()["count"] == usage["prompt_tokens"]


def test_a_chat_is_what_the_template_makes_of_it(tokenize, http):
    tokens = tokenize(messages=HELLO).json()["tokens"]
    text = http.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
    assert text.endswith("<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n")
    bare = tokenize(messages=HELLO, add_generation_prompt=False).json()["tokens"]
    assert tokens[: len(bare)] == bare != tokens


def test_a_chat_may_be_continued(tokenize, http):
    said = [*HELLO, {"role": "assistant", "content": "Hi, I"}]
    tokens = tokenize(messages=said, continue_final_message=True).json()["tokens"]
    assert http.post("/detokenize", json={"tokens": tokens}).json()["prompt"].endswith("assistant\nHi, I")
    assert refusal(tokenize(messages=HELLO, continue_final_message=True))[0] == "continue_final_message"


def test_tokens_have_spellings(tokenize):
    assert tokenize(prompt="a b<|im_end|>", return_token_strs=True).json()["token_strs"] == ["a", "Ġb", "<|im_end|>"]


def test_a_prompt_may_be_longer_than_the_context(tokenize):
    assert tokenize(prompt="cat " * 600).json()["count"] > 512


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, None),
        ({"prompt": "a", "messages": HELLO}, None),
        ({"messages": []}, "messages"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": "\ud800"}, "prompt"),
        ({"messages": HELLO, "add_special_tokens": True}, None),
        ({"prompt": "a", "stream": True}, "stream"),
    ],
)
def test_what_is_refused_is_named(tokenize, body, param):
    assert refusal(tokenize(**body))[0] == param


@pytest.mark.parametrize("token", [-1, 49152, 2**70])
def test_ids_beyond_the_vocabulary(http, token):
    param, message = refusal(http.post("/detokenize", json={"tokens": [1, token]}))
    assert param == "tokens.1"
    assert "from 0 to 49151" in message


def test_an_unknown_model(tokenize):
    assert tokenize(model="x", prompt="a").status_code == 404
