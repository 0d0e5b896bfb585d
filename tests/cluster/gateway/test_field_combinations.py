"""Fields that are right each by itself, drawn together at random: an answer or a 400, never a fault of the server's,
and a stream that adds up to the whole."""

from __future__ import annotations

import random

import pytest

from cluster.gateway.chat_protocol import ChatRequest
from cluster.gateway.protocol import CompletionRequest
from tests.support.sse import read_stream, refused

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]

COMMON = {
    "n": [1, 2, 5],
    "temperature": [0, 0.3, 2],
    "top_p": [0.1, 1],
    "top_k": [-1, 0, 1, 10**6],
    "min_p": [0, 0.5, 1],
    "seed": [-5, 0, 2**63 - 1],
    "presence_penalty": [-2, 0.5, 2],
    "frequency_penalty": [-2, 0.5, 2],
    "repetition_penalty": [0.1, 1.5],
    "logit_bias": [{}, {"5": 100, "49151": -100}],
    "allowed_token_ids": [[5], [0, 49151]],
    "bad_words": [[], ["hello", " world"]],
    "min_tokens": [0, 1, 3],
    "stop": ["h", ["llo", "never"]],
    "stop_token_ids": [[], [28120, 2]],
    "include_stop_str_in_output": [False, True],
    "skip_special_tokens": [False, True],
    "spaces_between_special_tokens": [False],
    "ignore_eos": [False, True],
    "prompt_logprobs": [0, 3],
    "truncate_prompt_tokens": [-1, 1, 7],
    "response_format": [{"type": "text"}],
    "priority": [-(2**63), 0, 7],
    "service_tier": ["auto", "default", "priority", "flex"],
    "cache_salt": ["", "salt"],
    "request_id": ["mine"],
    "user": ["me"],
    "metadata": [{"a": "b"}],
    "safety_identifier": ["me"],
    "prompt_cache_key": ["mine"],
    "prompt_cache_retention": ["24h"],
}
CHATS = COMMON | {
    "messages": [HELLO, [*HELLO, {"role": "assistant", "content": "hi"}, *HELLO]],
    "max_tokens": [1, 5],
    "max_completion_tokens": [5],
    "logprobs": [False, True],
    "top_logprobs": [0, 2],
    "add_generation_prompt": [True, False],
    "continue_final_message": [False, True],
    "include_reasoning": [True, False],
    "reasoning_effort": ["none", "high"],
}
TEXTS = COMMON | {
    "prompt": ["hello world", [5, 6], ["a", "b c"], [[7], [8, 9]], "🫠"],
    "max_tokens": [0, 1, 5],
    "logprobs": [0, 3],
    "echo": [False, True],
    "best_of": [1, 5],
    "add_special_tokens": [True, False],
}

pytestmark = pytest.mark.usefixtures("alive")


def drawn(rng, values, always):
    names = {*always, *rng.sample(sorted(values), rng.randrange(1, 9))}
    return {name: rng.choice(values[name]) for name in sorted(names)}


def texts_of(whole):
    return {
        choice["index"]: choice["text"] if "text" in choice else choice["message"]["content"] or ""
        for choice in whole["choices"]
    }


@pytest.mark.parametrize(
    ("path", "values", "always"),
    [(CHAT, CHATS, ("messages", "max_tokens")), (COMPLETIONS, TEXTS, ("prompt", "max_tokens"))],
)
def test_any_fields_may_stand_together_or_are_refused_by_name(http, path, values, always):
    rng, served = random.Random(6), 0
    for _ in range(150):
        body = {"model": "test"} | drawn(rng, values, always)
        response = http.post(path, json=body)
        if response.status_code != 200:
            assert refused(response)
            assert response.json()["error"]["param"] is not None, (body, response.text)
            continue
        served += 1
        if "prompt_logprobs" not in body and not body.get("best_of", 1) > body.get("n", 1):
            streamed = read_stream(http, path, body)
            assert {index: streamed.texts.get(index, "") for index in streamed.reasons} == texts_of(response.json())
    assert served > 50


def test_no_field_is_forgotten():
    apart = {"model", "stream", "stream_options"}
    constraints = {"structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar"}
    of_tools = {"tools", "tool_choice", "parallel_tool_calls"}
    of_templates = {"chat_template", "chat_template_kwargs", "documents", "thinking_token_budget"}
    assert CompletionRequest.model_fields.keys() - apart - constraints == TEXTS.keys()
    assert ChatRequest.model_fields.keys() - apart - constraints - of_tools - of_templates == CHATS.keys()
