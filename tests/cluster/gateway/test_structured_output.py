"""Constrained answers over HTTP, with the real client, from a real engine over a tiny random model."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Literal

import openai
import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field

from cluster.codec import DEFAULT_BUILDER
from replicas.config import EngineConfig
from tests.support.checkpoints import write_tiny_with_small_vocabulary
from tests.support.local_gateway import local_gateway
from tests.support.schemas import NASTY_TEXTS

MESSAGES = [{"role": "user", "content": "Hello, world!"}]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TREE = {
    "$defs": {
        "n": {
            "type": "object",
            "properties": {
                "v": {"enum": [1, 2]},
                "kids": {"type": "array", "items": {"$ref": "#/$defs/n"}, "maxItems": 1},
            },
            "required": ["v"],
        }
    },
    "$ref": "#/$defs/n",
}


class Pet(BaseModel):
    kind: Literal["cat", "dog"]
    legs: Annotated[int, Field(ge=0, le=4)]
    name: Annotated[str, Field(max_length=4)] | None


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    path = write_tiny_with_small_vocabulary(tmp_path_factory.mktemp("tiny"))
    config = EngineConfig(dtype="float32", kv_cache_memory=16 * 1024**2, max_running=16, max_model_len=1024)
    with local_gateway(path, config, DEFAULT_BUILDER) as gateway:
        yield gateway
        load = gateway.load()
        assert (load.running, load.waiting, load.kv_blocks_free) == (0, 0, load.kv_blocks_total)


@pytest.fixture(scope="module")
def client(gateway):
    return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0, timeout=120)


def chat(client, *, stream: bool = False, **request):
    """The texts and finish reasons of all choices."""
    options = {"model": "test", "messages": MESSAGES, "max_tokens": 300, **request}
    if not stream:
        answer = client.chat.completions.create(**options)
        return [(choice.message.content, choice.finish_reason) for choice in answer.choices]
    texts, reasons = {}, {}
    for chunk in client.chat.completions.create(stream=True, **options):
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            reasons[choice.index] = choice.finish_reason or reasons.get(choice.index)
    return [(texts[index], reasons[index]) for index in sorted(texts)]


def json_schema(schema) -> dict:
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "schema", [PERSON, TREE, {"enum": NASTY_TEXTS}, {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}]
)
def test_an_answer_follows_its_schema(client, schema, stream):
    for seed in range(3):
        ((text, reason),) = chat(client, response_format=json_schema(schema), seed=seed, stream=stream)
        assert reason == "stop"
        Draft202012Validator(schema).validate(json.loads(text))


def test_streamed_or_not_the_answer_is_the_same(client):
    request = {"response_format": json_schema(PERSON), "seed": 4, "n": 2}
    assert chat(client, **request) == chat(client, stream=True, **request)


def test_the_client_parses_into_its_own_classes(client):
    pet = client.chat.completions.parse(model="test", messages=MESSAGES, response_format=Pet, max_tokens=300, seed=1)
    assert isinstance(pet.choices[0].message.parsed, Pet)


def test_a_json_object_is_an_object_for_every_choice(client):
    for text, reason in chat(client, response_format={"type": "json_object"}, n=3, seed=2, max_tokens=40):
        assert text.startswith("{")
        if reason == "stop":
            assert isinstance(json.loads(text), dict)


@pytest.mark.parametrize("schema", [{}, True])
def test_an_empty_schema_gives_some_json(client, schema):
    ((text, reason),) = chat(client, response_format=json_schema(schema), seed=9, max_tokens=60)
    assert reason == "length" or json.loads(text) is not Ellipsis


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("extra", "pattern"),
    [
        ({"structured_outputs": {"regex": "[a-f]{2,9}\\d"}}, "[a-f]{2,9}\\d"),
        ({"guided_regex": "(🙂|é){1,3}"}, "(🙂|é){1,3}"),
        ({"structured_outputs": {"choice": ["left", "right"]}}, "left|right"),
        ({"guided_choice": ["开心", "so so"]}, "开心|so so"),
        ({"structured_outputs": {"grammar": 'root ::= "(" [0-9]{1,5} ")"'}}, "\\([0-9]{1,5}\\)"),
        ({"guided_grammar": 'start: "v" NUMBER\nNUMBER: /[0-9]{1,5}/'}, "v[0-9]{1,5}"),
        ({"structured_outputs": {"structural_tag": {"type": "structural_tag", "format": {
            "type": "tag", "begin": "<n>", "content": {"type": "regex", "pattern": "[0-9]{1,4}"}, "end": "</n>"}}}},
         "<n>[0-9]{1,4}</n>"),
    ],
)  # fmt: skip
def test_an_answer_follows_its_expression(client, extra, pattern, stream):
    ((text, reason),) = chat(client, extra_body=extra, stream=stream)
    assert reason == "stop"
    assert re.fullmatch(pattern, text), text


def test_completions_can_be_constrained_too(client):
    answer = client.completions.create(
        model="test", prompt="Hello", max_tokens=50, extra_body={"structured_outputs": {"choice": ["a", "b"]}}
    )
    assert answer.choices[0].text in ("a", "b")


def test_log_probabilities_stay_finite(client):
    answer = client.chat.completions.create(
        model="test", messages=MESSAGES, max_tokens=60, logprobs=True, top_logprobs=5,
        extra_body={"structured_outputs": {"choice": ["left", "right"]}},
    )  # fmt: skip
    entries = answer.choices[0].logprobs.content
    assert all(-1000 < entry.logprob <= 0 for entry in entries)
    assert all(-1000 < top.logprob <= 0 for entry in entries for top in entry.top_logprobs)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("request_", "named"),
    [
        ({"extra_body": {"guided_grammar": "root ::= nowhere"}}, "nowhere"),
        ({"extra_body": {"guided_grammar": "root ::= (" * 1000}}, "EBNF"),
        ({"extra_body": {"guided_regex": "a{9999999}"}}, "a{9999999}"),
        ({"response_format": json_schema({"type": "string", "pattern": "^(?=x)y$"})}, "look-around"),
        ({"response_format": json_schema({"type": "array", "uniqueItems": True})}, "uniqueItems"),
    ],
)
def test_what_cannot_be_served_is_a_400_and_harms_nobody(client, request_, named, stream):
    with pytest.raises(openai.BadRequestError, match=re.escape(named)):
        chat(client, stream=stream, **request_)
    assert chat(client, extra_body={"guided_choice": ["alive"]})[0][0] == "alive"


def test_constrained_and_free_requests_run_side_by_side(client):
    def ask(number: int):
        if number % 3 == 0:
            return chat(client, seed=number, max_tokens=20)
        if number % 3 == 1:
            return chat(client, seed=number, extra_body={"guided_regex": f"x{number}[ab]{{1,9}}"})
        return chat(client, seed=number, response_format=json_schema({"const": {"n": number}}))

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(ask, range(12)))
    for number, ((text, _),) in enumerate(answers):
        if number % 3 == 1:
            assert re.fullmatch(f"x{number}[ab]{{1,9}}", text)
        if number % 3 == 2:
            assert json.loads(text) == {"n": number}
