"""Calls that are forced upon a model that knows nothing: random weights at temperature 1 call what they are told to."""

from __future__ import annotations

import json

import jsonschema
import pytest
from transformers import LlamaConfig

from cluster.codec import DEFAULT_BUILDER
from replicas.config import EngineConfig
from replicas.text.tokenizer import Tokenizer
from tests.support.checkpoints import write_tiny
from tests.support.dialects import DIALECTS, TEMPLATES, write_dialect
from tests.support.local_gateway import local_gateway
from tests.support.scripted import add_dialects, alike, joined_message
from tests.support.sse import read_stream, refused

CHAT = "/v1/chat/completions"
COLOURS = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green", "blue"]}, "bright": {"type": "boolean"}},
    "required": ["colour", "bright"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "paint", "parameters": COLOURS}},
    {"type": "function", "function": {"name": "stop"}},
]
SCHEMAS = {"paint": COLOURS, "stop": {"type": "object", "maxProperties": 0}}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forced")
    folders = {name: write_dialect(folder / name, template) for name, template in DIALECTS.items()}
    main = folders["json"]
    sizes = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4}
    vocabulary = Tokenizer.open(main).vocab_size
    write_tiny(main, LlamaConfig(**sizes, vocab_size=vocabulary, max_position_embeddings=2048, eos_token_id=2))
    config = EngineConfig(dtype="float32", kv_cache_memory=16 * 1024**2, max_running=8)
    with local_gateway(main, config, DEFAULT_BUILDER, "json") as gateway, gateway.client() as client:
        add_dialects(gateway, folders)
        yield client


def body(model, **fields):
    messages = [{"role": "user", "content": "Go on."}]
    return {"model": model, "messages": messages, "tools": TOOLS, "max_tokens": 400, "seed": 7} | fields


def calls_of(message):
    return [
        (call["function"]["name"], json.loads(call["function"]["arguments"])) for call in message.get("tool_calls", ())
    ]


def both_ways(client, asked):
    response = client.post(CHAT, json=asked)
    assert response.status_code == 200, response.text
    (choice,) = response.json()["choices"]
    streamed = read_stream(client, CHAT, asked)
    assert alike(choice["message"], joined_message(streamed))
    assert choice["finish_reason"] == streamed.reasons[0]
    return choice


@pytest.mark.parametrize("model", TEMPLATES)
class TestForced:
    def test_a_required_call_is_made(self, client, model):
        choice = both_ways(client, body(model, tool_choice="required", parallel_tool_calls=False))
        ((name, arguments),) = calls_of(choice["message"])
        jsonschema.validate(arguments, SCHEMAS[name])
        assert (choice["message"]["content"], choice["finish_reason"]) == (None, "tool_calls")

    def test_a_named_call_is_of_that_function(self, client, model):
        name = "paint" if model < "llama" else "stop"
        choice = both_ways(client, body(model, tool_choice={"type": "function", "function": {"name": name}}))
        ((called, arguments),) = calls_of(choice["message"])
        assert called == name
        jsonschema.validate(arguments, SCHEMAS[name])
        assert choice["finish_reason"] == "tool_calls"


def test_several_calls_may_be_made(client):
    choice = both_ways(client, body("hermes", tool_choice="required", n=1))
    calls = calls_of(choice["message"]) if choice["finish_reason"] == "tool_calls" else []
    for name, arguments in calls:
        jsonschema.validate(arguments, SCHEMAS[name])
    assert choice["message"]["tool_calls"]


def test_a_schema_that_cannot_be_enforced_is_refused_by_its_keyword(client):
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "colour": "red"}}}
    asked = body("hermes", tools=[tool], tool_choice="required")
    assert "colour" in refused(client.post(CHAT, json=asked), param="tools")


class TestBesideReasoning:
    def test_a_constraint_holds_for_the_answer_behind_an_open_thought(self, client):
        bias = {str(self.closing(client)): 100}
        fields = {"response_format": {"type": "json_schema", "json_schema": {"name": "c", "schema": COLOURS}}}
        asked = body("opened", tools=None, **fields)
        free = client.post(CHAT, json=asked | {"max_tokens": 20}).json()["choices"][0]
        assert free["message"]["content"] is None  # it still thinks
        assert free["message"]["reasoning_content"]
        choice = client.post(CHAT, json=asked | {"logit_bias": bias}).json()["choices"][0]
        jsonschema.validate(json.loads(choice["message"]["content"]), COLOURS)

    def test_a_constraint_holds_where_a_thought_is_possible(self, client):
        fields = {"response_format": {"type": "json_schema", "json_schema": {"name": "c", "schema": COLOURS}}}
        for seed in range(2):
            asked = body("thinking", tools=None, seed=seed, **fields | {"max_tokens": 100})
            choice = both_ways(client, asked)
            if choice["message"]["content"]:
                jsonschema.validate(json.loads(choice["message"]["content"]), COLOURS)
            else:
                assert choice["finish_reason"] == "length"

    def test_a_call_is_forced_behind_a_thought(self, client):
        bias = {str(self.closing(client)): 100}
        message = both_ways(client, body("opened", tool_choice="required", parallel_tool_calls=False, logit_bias=bias))
        ((name, arguments),) = calls_of(message["message"])
        jsonschema.validate(arguments, SCHEMAS[name])
        assert message["finish_reason"] == "tool_calls"

    def closing(self, client):
        (token,) = client.post("/tokenize", json={"model": "opened", "prompt": "</think>"}).json()["tokens"]
        return token
