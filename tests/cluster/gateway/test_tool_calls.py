"""Tool calls over HTTP: what a model writes in its own form reaches the client as calls, streamed and whole."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from openai import OpenAI

from replicas.text.tools.formats import TOOL_FORMATS
from tests.support.dialects import TEMPLATES
from tests.support.scripted import alike, joined_message
from tests.support.sse import read_stream, refused

CHAT = "/v1/chat/completions"
NASTY = {"xs": [{"k": '}"]'}, {}], "s": "a\nb"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def tool(name, **more):
    return {"type": "function", "function": {"name": name, "parameters": SCHEMA} | more}


TOOLS = [tool("f"), tool("get.x")]


def written(name, *calls):
    return TOOL_FORMATS[name].write([(called, json.dumps(arguments)) for called, arguments in calls])


def calls_of(message):
    return [
        (call["function"]["name"], json.loads(call["function"]["arguments"])) for call in message.get("tool_calls", ())
    ]


def both_ways(scripted, chats, model, text, **fields):
    """The message and reason of an answer, which must not depend on streaming."""
    whole, streamed = scripted.ask(chats, model, text, **{"tools": TOOLS} | fields)
    choice = whole["choices"][0]
    assert alike(choice["message"], joined_message(streamed))
    assert streamed.reasons[0] == choice["finish_reason"]
    assert streamed.roles[0] == 1
    return choice["message"], choice["finish_reason"]


@pytest.fixture(params=TEMPLATES)
def model(request):
    return request.param


class TestEveryDialect:
    def test_calls_reach_the_client(self, scripted, chats, model):
        text = "Let me see.\n\n" + written(model, ("f", NASTY), ("get.x", {}))
        message, reason = both_ways(scripted, chats, model, text)
        assert calls_of(message) == [("f", NASTY), ("get.x", {})]
        assert message["content"] == "Let me see."
        assert reason == "tool_calls"
        ids = [call["id"] for call in message["tool_calls"]]
        assert len({*ids}) == 2

    def test_content_is_null_where_there_are_only_calls(self, scripted, chats, model):
        message, reason = both_ways(scripted, chats, model, written(model, ("f", {"a": 1})))
        assert (message["content"], reason) == (None, "tool_calls")

    def test_other_answers_stay_as_they_are(self, scripted, chats, model):
        message, reason = both_ways(scripted, chats, model, 'No: {"a": [1]}\n')
        assert (message, reason) == ({"role": "assistant", "content": 'No: {"a": [1]}\n'}, "stop")

    @pytest.mark.parametrize("fields", [{"tools": None}, {"tool_choice": "none"}, {"tools": []}])
    def test_without_tools_nothing_is_a_call(self, scripted, chats, model, fields):
        message, reason = both_ways(scripted, chats, model, "So: " + written(model, ("f", {"a": 1})), **fields)
        assert message.keys() == {"role", "content"}
        assert message["content"].startswith("So: ")
        assert reason == "stop"

    def test_one_call_is_given_if_one_is_wanted(self, scripted, chats, model):
        text = written(model, ("f", {"a": 1}), ("f", {"a": 2}))
        message, reason = both_ways(scripted, chats, model, text, parallel_tool_calls=False)
        assert (calls_of(message), reason) == ([("f", {"a": 1})], "tool_calls")

    def test_an_answer_cut_anywhere_is_the_same_both_ways(self, scripted, chats, model):
        text = "So: " + written(model, ("f", {"s": "a b"}))
        length = len(scripted.script.tokens(scripted.script.add(text)))
        for most in range(1, length, 11):
            message, reason = both_ways(scripted, chats, model, text, max_tokens=most)
            assert reason == "length"
            arguments = "".join(call["function"]["arguments"] for call in message.get("tool_calls", ()))
            assert json.dumps({"s": "a b"}).startswith(arguments)
            if "tool_calls" not in message:
                assert text.startswith(message["content"])

    @pytest.mark.parametrize("stop", ["a", '": "', "So"])
    def test_a_stop_string_in_what_looks_like_a_call(self, scripted, chats, model, stop):
        text = 'So: {"name": "f", "x": "y"}'
        message, reason = both_ways(scripted, chats, model, text, stop=[stop])
        assert (message, reason) == ({"role": "assistant", "content": text[: text.index(stop)]}, "stop")

    def test_a_call_that_a_stop_string_cut_is_no_reason_to_call(self, scripted, chats, model):
        message, reason = both_ways(scripted, chats, model, written(model, ("f", {"s": "one two"})), stop=["two"])
        assert reason == "stop"
        assert message["tool_calls"][0]["function"]["arguments"] == '{"s": "one '

    def test_history_with_calls_renders_as_with_mappings(self, scripted, chats, model):
        renderer = scripted.gateway.service.models[model].renderer
        call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 3}'}}
        history = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "4"}]},
            {"role": "user", "content": "and?"},
        ]
        plain = [dict(message) for message in history]
        plain[1] = plain[1] | {"tool_calls": [call | {"function": {"name": "f", "arguments": {"a": 3}}}]}
        whole, _ = scripted.ask(chats, model, "4", messages=history, tools=TOOLS)
        ids = renderer.encode(plain, TOOLS)
        assert whole["usage"]["prompt_tokens"] == len(ids)


class TestHistory:
    @pytest.mark.parametrize("arguments", ["", "{}", '{"s": "\\u00e9\\n"}'])
    @pytest.mark.parametrize("content", [None, "", [], "text"])
    def test_variants_are_taken(self, scripted, chats, arguments, content):
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
        messages = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": content, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "4"},
        ]
        scripted.ask(chats, "hermes", "4", messages=messages)

    @pytest.mark.parametrize("calls", [[], None])
    def test_no_calls_are_no_calls(self, scripted, chats, calls):
        messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes", "tool_calls": calls}]
        scripted.ask(chats, "hermes", "4", messages=messages)

    @pytest.mark.parametrize("arguments", ["{bad", "[1]", "3", '{"a": 1'])
    def test_arguments_that_are_no_object_are_refused(self, scripted, chats, arguments):
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
        messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": [call]}]
        body = scripted.body("hermes", "4", messages=messages)
        refused(chats.post(CHAT, json=body), words="messages[1].tool_calls[0].function.arguments")

    def test_ids_from_elsewhere_are_fitted_to_a_template_that_is_strict_about_them(self, scripted, chats):
        call = {"id": "call_0123456789abcdef", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        messages = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": "4"},
        ]
        scripted.ask(chats, "mistral", "4", messages=messages)


class TestStreams:
    def test_arguments_come_as_they_are_written(self, scripted, chats):
        text = written("hermes", ("f", {"s": "one two three four five six seven"}))
        _, streamed = scripted.ask(chats, "hermes", text, tools=TOOLS)
        pieces = [
            call["function"]["arguments"]
            for event in streamed.events
            for choice in event["choices"]
            for call in choice["delta"].get("tool_calls", ())
        ]
        assert len([piece for piece in pieces if piece]) > 3

    def test_many_at_once_do_not_mix(self, scripted, chats):
        def one(number):
            name = [*TEMPLATES][number % len(TEMPLATES)]
            calls = [("f", {"a": number}), ("f", NASTY)] if number % 2 else []
            body = bodies[number]
            message = joined_message(read_stream(chats, CHAT, body))
            assert calls_of(message) == calls
            if not calls:
                assert message["content"] == f"{name} {number}"

        bodies = []
        for number in range(16):
            name = [*TEMPLATES][number % len(TEMPLATES)]
            if number % 2:
                text = written(name, ("f", {"a": number}), ("f", NASTY))
                bodies.append(scripted.body(name, text, tools=TOOLS))
            else:
                bodies.append(scripted.body(name, f"{name} {number}"))
        with ThreadPoolExecutor(16) as threads:
            list(threads.map(one, range(16)))

    def test_choices_keep_their_own_calls(self, scripted, chats):
        texts = [written("hermes", ("f", {"a": 1})), "None.", "So: " + written("hermes", ("f", {"a": 2}), ("f", {}))]
        whole, streamed = scripted.ask(chats, "hermes", *texts, tools=TOOLS)
        expected = [[("f", {"a": 1})], [], [("f", {"a": 2}), ("f", {})]]
        assert [calls_of(choice["message"]) for choice in whole["choices"]] == expected
        assert [calls_of(joined_message(streamed, index)) for index in range(3)] == expected
        reasons = ["tool_calls", "stop", "tool_calls"]
        assert [choice["finish_reason"] for choice in whole["choices"]] == reasons
        assert [streamed.reasons[index] for index in range(3)] == reasons

    def test_log_probabilities_are_all_there(self, scripted, chats):
        text = "So: " + written("hermes", ("f", {"a": 1}))
        whole, streamed = scripted.ask(chats, "hermes", text, tools=TOOLS, logprobs=True)
        entries = [
            entry
            for event in streamed.events
            for choice in event["choices"]
            for entry in (choice["logprobs"] or {"content": []})["content"]
        ]
        assert entries == whole["choices"][0]["logprobs"]["content"]
        assert bytes(byte for entry in entries for byte in entry["bytes"] or ()).decode() == text


@pytest.fixture
def client(scripted):
    return OpenAI(base_url=f"{scripted.gateway.url}/v1", api_key="any", max_retries=0)


class TestTheOpenAIClient:
    def test_reads_a_whole_call(self, scripted, client):
        text = written("hermes", ("f", NASTY))
        answer = client.chat.completions.create(**scripted.body("hermes", text, tools=TOOLS))
        (call,) = answer.choices[0].message.tool_calls
        assert (call.type, call.function.name) == ("function", "f")
        assert json.loads(call.function.arguments) == NASTY
        assert answer.choices[0].finish_reason == "tool_calls"

    def test_reads_a_streamed_call_and_continues_with_its_result(self, scripted, client):
        text = written("hermes", ("f", NASTY))
        body = scripted.body("hermes", text, tools=TOOLS)
        with client.chat.completions.stream(**body) as stream:
            stream.until_done()
            message = stream.get_final_completion().choices[0].message
        (call,) = message.tool_calls
        assert json.loads(call.function.arguments) == NASTY
        history = [
            *body["messages"],
            message.model_dump(exclude_none=True, exclude={"parsed"}, exclude_unset=True),
            {"role": "tool", "tool_call_id": call.id, "content": "4"},
        ]
        for one in history[1]["tool_calls"]:
            one.pop("index", None)
            one["function"].pop("parsed_arguments", None)
        answer = client.chat.completions.create(**scripted.body("hermes", "It is 4.", messages=history))
        assert answer.choices[0].message.content == "It is 4."


FAULTS = [
    ({"tools": {}}, "tools"),
    ({"tools": [{}]}, "tools.0.type"),
    ({"tools": [{"type": "retrieval"}]}, "tools.0.type"),
    ({"tools": [{"type": "function"}]}, "tools.0.function"),
    ({"tools": [tool("")]}, "tools.0.function.name"),
    ({"tools": [tool("a b")]}, "tools.0.function.name"),
    ({"tools": [tool("x" * 200)]}, "tools.0.function.name"),
    ({"tools": [tool("f"), tool("f")]}, "tools"),
    ({"tools": [tool("f", parameters=[])]}, "tools.0.function.parameters"),
    ({"tools": [tool("f", parameters={"type": "string"})]}, "tools.0.function.parameters"),
    ({"tools": [tool("f", colour="red")]}, "tools.0.function.colour"),
    ({"tools": [tool(f"f{i}") for i in range(5000)]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": "sometimes", "tools": TOOLS}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "g"}}, "tools": TOOLS}, "tool_choice"),
    ({"tool_choice": {"type": "function"}, "tools": TOOLS}, "tool_choice.function"),
    ({"tools": TOOLS, "response_format": {"type": "json_object"}}, "response_format"),
    ({"tools": TOOLS, "guided_regex": "a"}, "guided_regex"),
    ({"tools": [tool("f", strict=True)]}, "tools.0.function.strict"),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
]


@pytest.mark.parametrize(("fields", "param"), FAULTS, ids=lambda value: str(value)[:60])
def test_what_is_no_tool_is_refused_by_name(scripted, chats, fields, param):
    refused(chats.post(CHAT, json=scripted.body("llama", "no", **fields)), param=param)


def test_tools_of_a_model_whose_calls_cannot_be_read_are_refused(scripted, chats):
    template = "{% for tool in tools %}<function={{ tool.function.name }}>{% endfor %}"
    body = scripted.body("json", "no", tools=TOOLS, chat_template=template)
    refused(chats.post(CHAT, json=body), param="tools", words="cannot read the calls")
