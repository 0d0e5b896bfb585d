"""/v1/messages as Anthropic's client sees it: turns and blocks on the way in, blocks and events on the way out."""

from __future__ import annotations

import json

import anthropic
import pytest

from cluster.gateway.anthropic_answer import blocks
from cluster.gateway.anthropic_chat import chat_fields
from cluster.gateway.anthropic_protocol import MessagesRequest
from cluster.gateway.errors import body_at
from cluster.gateway.guard import REFUSAL
from replicas.text.parts import CallArguments, CallStart

WEATHER = {
    "name": "weather",
    "description": "Tells the weather.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
USE = {"type": "tool_use", "id": "a", "name": "weather", "input": {}}
HELLO = [{"role": "user", "content": "Hello!"}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'


@pytest.fixture(scope="module")
def client(scripted):
    return anthropic.Anthropic(base_url=scripted.gateway.url, api_key="any", max_retries=0)


def create(client, **fields):
    return client.messages.create(**{"model": "hermes", "max_tokens": 200, "messages": HELLO} | fields)


def streamed(client, **fields):
    """The message that the client builds from the events."""
    with client.messages.stream(**{"model": "hermes", "max_tokens": 200, "messages": HELLO} | fields) as stream:
        for _ in stream:
            pass
        return stream.get_final_message()


def alike(whole, other):
    """Whether two messages say the same, with calls of the same arguments."""
    known = {"type", "text", "thinking", "name", "input"}
    contents = [[block.model_dump(include=known) for block in each.content] for each in (whole, other)]
    return contents[0] == contents[1] and whole.stop_reason == other.stop_reason


class TestAnswers:
    def test_text(self, client, says):
        says("Guten Tag, Köln 🙂!")
        whole = create(client)
        assert [block.text for block in whole.content] == ["Guten Tag, Köln 🙂!"]
        assert (whole.role, whole.type, whole.model, whole.stop_reason) == (
            "assistant",
            "message",
            "hermes",
            "end_turn",
        )
        assert whole.usage.input_tokens + whole.usage.cache_read_input_tokens > 0
        other = streamed(client)
        assert alike(whole, other)
        assert other.usage.output_tokens == whole.usage.output_tokens

    def test_the_cached_part_of_a_prompt_is_told(self, client, says):
        says("Yes.")
        long = [{"role": "user", "content": "tell me " * 60}]
        create(client, messages=long)
        for usage in (create(client, messages=long).usage, streamed(client, messages=long).usage):
            assert usage.cache_read_input_tokens > 0
            total = usage.input_tokens + usage.cache_read_input_tokens
            assert total == client.messages.count_tokens(model="hermes", messages=long).input_tokens

    def test_a_tool_is_used(self, client, says):
        says(f"Let me see.\n{CALL}")
        whole = create(client, tools=[WEATHER])
        text, use = whole.content
        assert text.text.strip() == "Let me see."
        assert (use.type, use.name, use.input) == ("tool_use", "weather", {"city": "Köln"})
        assert whole.stop_reason == "tool_use"
        other = streamed(client, tools=[WEATHER])
        assert [block.type for block in other.content] == ["text", "tool_use"]
        assert (other.content[1].input, other.stop_reason) == (use.input, "tool_use")

    def test_several_tools_are_used(self, client, says):
        says(f"{CALL}\n{CALL}")
        for message in (create(client, tools=[WEATHER]), streamed(client, tools=[WEATHER])):
            assert [block.input for block in message.content] == [{"city": "Köln"}] * 2
            assert len({block.id for block in message.content}) == 2

    def test_thinking_is_a_block_of_its_own(self, client, says):
        says("<think>Hm.</think>Well.")
        whole = create(client, model="thinking")
        assert [(block.type, getattr(block, block.type)) for block in whole.content] == [
            ("thinking", "Hm."),
            ("text", "Well."),
        ]
        assert alike(whole, streamed(client, model="thinking"))

    def test_an_answer_can_be_bound_to_a_schema(self, client, says):
        says('{"n":7}')
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
        message = create(client, output_config={"format": {"type": "json_schema", "schema": schema}})
        assert json.loads(message.content[0].text) == {"n": 7}

    @pytest.mark.parametrize(
        ("fields", "reason", "sequence"),
        [({"max_tokens": 2}, "max_tokens", None), ({"stop_sequences": ["x", "two"]}, "stop_sequence", "two")],
    )
    def test_why_it_stopped(self, client, says, fields, reason, sequence):
        says("one two three four five")
        for message in (create(client, **fields), streamed(client, **fields)):
            assert (message.stop_reason, message.stop_sequence) == (reason, sequence)

    def test_the_events_of_a_stream(self, scripted, says):
        says("Hi")
        body = {"model": "hermes", "max_tokens": 9, "messages": HELLO, "stream": True}
        with scripted.gateway.client() as http:
            lines = http.post("/v1/messages", json=body).text.splitlines()
        names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
        data = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
        assert [value["type"] for value in data] == names
        assert names[:2] == ["message_start", "content_block_start"]
        assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
        assert data[0]["message"]["content"] == []
        assert data[-2]["usage"]["output_tokens"] == 3

    def test_arguments_that_were_cut_are_left_out(self):
        assert blocks([CallStart(0, "a", "f"), CallArguments(0, '{"x": ')])[0]["input"] == {}


class TestTurns:
    """What a conversation is as a chat."""

    def chat(self, **fields):
        body = {"model": "m", "max_tokens": 9, "messages": HELLO} | fields
        return chat_fields(MessagesRequest.model_validate(body), can_think=True)

    def text(self, message):
        content = message["content"]
        return content if isinstance(content, str) else "".join(part["text"] for part in content)

    def test_a_conversation_with_tools(self):
        turns = [
            {"role": "user", "content": "Weather?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                    {"type": "text", "text": "Let me see."},
                    {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Köln"}},
                    {"type": "tool_use", "id": "t2", "name": "weather", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "rain"}]},
                    {"type": "tool_result", "tool_use_id": "t2", "content": "no city", "is_error": True},
                    {"type": "text", "text": "And?", "cache_control": {"type": "ephemeral"}},
                ],
            },
        ]
        messages = self.chat(
            messages=turns, system=[{"type": "text", "text": "Be"}, {"type": "text", "text": " brief"}]
        )["messages"]
        assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool", "tool", "user"]
        assert list(map(self.text, messages)) == [
            "Be brief",
            "Weather?",
            "Let me see.",
            "rain",
            "Error: no city",
            "And?",
        ]
        calls = messages[2]["tool_calls"]
        assert [json.loads(call["function"]["arguments"]) for call in calls] == [{"city": "Köln"}, {}]
        assert messages[2]["reasoning_content"] == "Hm."
        assert [message.get("tool_call_id") for message in messages[3:5]] == ["t1", "t2"]

    def test_neighbours_of_one_role_are_one_message(self):
        turns = [{"role": role, "content": text} for role, text in (("user", "a"), ("user", "b"), ("assistant", "c"))]
        messages = self.chat(messages=[*turns, {"role": "user", "content": [{"type": "text", "text": "d"}]}])[
            "messages"
        ]
        assert list(map(self.text, messages)) == ["a\n\nb", "c", "d"]

    def test_a_last_turn_of_the_assistant_is_continued(self, client, says):
        assert self.chat(messages=[*HELLO, {"role": "assistant", "content": "Hi"}])["continue_final_message"]
        says(" there")
        message = create(client, messages=[*HELLO, {"role": "assistant", "content": "Hi"}])
        assert message.content[0].text == " there"

    @pytest.mark.parametrize(
        ("choice", "expected"),
        [
            ({"type": "auto"}, ("auto", True)),
            ({"type": "any", "disable_parallel_tool_use": True}, ("required", False)),
            ({"type": "none"}, ("none", True)),
            ({"type": "tool", "name": "weather"}, ({"type": "function", "function": {"name": "weather"}}, True)),
        ],
    )
    def test_tool_choice(self, choice, expected):
        fields = self.chat(tools=[WEATHER], tool_choice=choice)
        assert (fields["tool_choice"], fields["parallel_tool_calls"]) == expected

    def test_the_rest(self):
        schema = {"type": "object"}
        fields = self.chat(
            stop_sequences=["x"],
            temperature=0.5,
            thinking={"type": "disabled"},
            output_config={"format": {"type": "json_schema", "schema": schema}},
        )
        assert (fields["max_tokens"], fields["stop"], fields["temperature"]) == (9, ["x"], 0.5)
        assert fields["reasoning_effort"] == "none"
        assert fields["response_format"]["json_schema"]["schema"] == schema


def test_tokens_are_counted_as_they_are_used(client, says):
    says("x")
    asked = {"model": "hermes", "messages": HELLO, "system": "Be brief.", "tools": [WEATHER]}
    usage = client.messages.create(max_tokens=1, **asked).usage
    assert client.messages.count_tokens(**asked).input_tokens == usage.input_tokens + usage.cache_read_input_tokens


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"max_tokens": None}, "max_tokens is required"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": []}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages"),
        ({"messages": [{"role": "user", "content": [USE]}]}, "tool_use"),
        ({"messages": [*HELLO, {"role": "assistant", "content": [USE]}]}, "tool_result must follow"),
        ({"temperature": 9}, "temperature"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"thinking": {"type": "enabled", "budget_tokens": 300}}, "thinking"),
        ({"thinking": {"type": "enabled", "budget_tokens": 100}}, "thinking budget"),
        ({"container": "c"}, "container is not supported"),
        ({"frequency_penalty": 1}, "frequency_penalty is not a known field"),
    ],
)
def test_what_is_refused_is_named(scripted, fields, said):
    body = {"model": "hermes", "max_tokens": 200, "messages": HELLO} | fields
    with scripted.gateway.client() as http:
        response = http.post("/v1/messages", json=body)
    assert response.status_code == 400, response.text
    error = response.json()
    assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
    assert said in error["error"]["message"]


def test_errors_have_anthropics_names(client):
    with pytest.raises(anthropic.NotFoundError) as error:
        create(client, model="claude")
    assert error.value.body["error"]["type"] == "not_found_error"


def test_so_do_those_that_no_endpoint_hears_of(scripted):
    with scripted.gateway.client() as http:
        answers = [
            http.get("/v1/messages"),
            http.post("/v1/messages/batches"),
            http.post("/v1/messages", content=b" " * 5 * 1024**2),
            http.post("/v1/messages", content=b"{", headers={"content-type": "text/plain"}),
        ]
    assert [answer.status_code for answer in answers] == [405, 404, 413, 415]
    kinds = [answer.json()["error"]["type"] for answer in answers]
    assert kinds == ["invalid_request_error", "not_found_error", "request_too_large", "invalid_request_error"]
    refusal = body_at("/v1/messages", REFUSAL)
    assert (refusal["type"], refusal["error"]["type"]) == ("error", "authentication_error")
