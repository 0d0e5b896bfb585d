"""/v1/responses as OpenAI's client sees it: items in, items and numbered events out, and nothing kept."""

from __future__ import annotations

import json

import pytest
from openai import BadRequestError, OpenAI

from cluster.gateway.responses_chat import chat_fields
from cluster.gateway.responses_protocol import ResponsesRequest

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "Tells the weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}


@pytest.fixture(scope="module")
def client(scripted):
    return OpenAI(base_url=f"{scripted.gateway.url}/v1", api_key="any", max_retries=0)


def create(client, **fields):
    return client.responses.create(**{"model": "hermes", "input": "Hello!"} | fields)


def streamed(client, **fields):
    """The events, and the response that the client builds from them."""
    with client.responses.stream(**{"model": "hermes", "input": "Hello!"} | fields) as stream:
        events = list(stream)
        return events, stream.get_final_response()


def bare(response):
    """What the output says, without ids."""
    return [item.to_dict() | {"id": "", "call_id": ""} for item in response.output]


class TestAnswers:
    def test_text(self, client, says):
        says("Guten Tag, Köln 🙂!")
        whole = create(client, instructions="Be polite.", metadata={"a": "b"})
        assert whole.output_text == "Guten Tag, Köln 🙂!"
        assert (whole.status, whole.store, whole.instructions) == ("completed", False, "Be polite.")
        assert whole.metadata == {"a": "b"}
        usage = whole.usage
        assert usage.total_tokens == usage.input_tokens + usage.output_tokens
        events, other = streamed(client, instructions="Be polite.")
        assert other.output_text == whole.output_text
        assert other.usage.output_tokens == usage.output_tokens
        deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
        assert "".join(deltas) == whole.output_text

    def test_events_are_numbered_and_in_order(self, client, says):
        says("Hi")
        stream = create(client, stream=True)
        events = list(stream)
        assert [event.sequence_number for event in events] == list(range(len(events)))
        kinds = [event.type.removeprefix("response.") for event in events]
        assert [kind for kind in kinds if kind != "output_text.delta"] == [
            *("created", "in_progress", "output_item.added", "content_part.added"),
            *("output_text.done", "content_part.done", "output_item.done", "completed"),
        ]
        assert events[0].response.output == []
        assert events[2].item.content == []
        assert events[-1].response.output[0] == events[-2].item

    def test_functions_are_called(self, client, says):
        says(f"Let me see.\n{CALL}\n{CALL}")
        whole = create(client, tools=[WEATHER])
        text, first, second = whole.output
        assert (text.type, first.type, first.name) == ("message", "function_call", "weather")
        assert json.loads(first.arguments) == json.loads(second.arguments) == {"city": "Köln"}
        assert first.call_id != second.call_id
        events, other = streamed(client, tools=[WEATHER])
        assert [item.type for item in other.output] == [item.type for item in whole.output]
        done = [event for event in events if event.type == "response.function_call_arguments.done"]
        deltas = [event for event in events if event.type == "response.function_call_arguments.delta"]
        assert [json.loads(event.arguments) for event in done] == [{"city": "Köln"}] * 2
        assert "".join(event.delta for event in deltas) == "".join(event.arguments for event in done)

    def test_reasoning_is_an_item_of_its_own(self, client, says):
        says("<think>Hm, well.</think>Yes.")
        whole = create(client, model="thinking")
        assert [item.type for item in whole.output] == ["reasoning", "message"]
        assert whole.output[0].content[0].text == "Hm, well."
        assert whole.output_text == "Yes."
        assert 0 < whole.usage.output_tokens_details.reasoning_tokens < whole.usage.output_tokens
        events = list(create(client, model="thinking", stream=True))
        assert bare(events[-1].response) == bare(whole)

    def test_an_answer_that_was_cut_is_incomplete(self, client, says):
        says("one two three four five")
        whole = create(client, max_output_tokens=2)
        assert (whole.status, whole.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        assert whole.output[0].status == "incomplete"
        events = list(create(client, max_output_tokens=2, stream=True))
        assert events[-1].type == "response.incomplete"
        assert bare(events[-1].response) == bare(whole)

    def test_an_answer_can_be_bound_to_a_schema(self, client, says):
        says('{"n":7}')
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
        text = {"format": {"type": "json_schema", "name": "number", "schema": schema, "strict": True}}
        assert json.loads(create(client, text=text).output_text) == {"n": 7}
        text["format"]["schema"] = {"type": "object", "not": {}}
        with pytest.raises(BadRequestError, match=r"text\.format") as error:
            create(client, text=text)
        assert error.value.param.startswith("text.format")

    def test_an_output_can_be_sent_back(self, client, says):
        says(f"<tool_call>\n{CALL[12:]}")
        question = {"role": "user", "content": "How is the weather?"}
        called = create(client, input=[question], tools=[WEATHER])
        result = {"type": "function_call_output", "call_id": called.output[-1].call_id, "output": "rain"}
        says("It rains.")
        items = [question, *(item.to_dict() for item in called.output), result]
        assert create(client, input=items, tools=[WEATHER]).output_text == "It rains."


class TestItems:
    """What a list of items is as a chat."""

    def messages(self, **fields):
        return chat_fields(ResponsesRequest.model_validate({"model": "m"} | fields))["messages"]

    def text(self, message):
        return "".join(part["text"] for part in message["content"])

    def test_a_conversation_with_functions(self):
        items = [
            {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
            {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Wait."}]},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
            {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "rain"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "sun"}]},
        ]
        messages = self.messages(input=items, instructions="Be brief.")
        assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool", "tool"]
        assert list(map(self.text, messages)) == ["Be brief.", "Weather?", "Wait.", "rain", "sun"]
        assert messages[2]["reasoning_content"] == "Hm."
        assert [call["id"] for call in messages[2]["tool_calls"]] == ["c1", "c2"]

    def test_instructions_join_what_a_developer_says(self):
        items = [{"role": "developer", "content": "A"}, {"role": "user", "content": "B"}]
        messages = self.messages(input=items, instructions="I")
        assert [(message["role"], self.text(message)) for message in messages] == [
            ("developer", "I\n\nA"),
            ("user", "B"),
        ]

    def test_the_rest(self):
        schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
        fields = chat_fields(
            ResponsesRequest.model_validate(
                {
                    "model": "m",
                    "input": "x",
                    "text": {"format": schema},
                    "tools": [WEATHER],
                    "tool_choice": {"type": "function", "name": "weather"},
                    "reasoning": {"effort": "low"},
                    "max_output_tokens": 7,
                }
            )
        )
        assert fields["response_format"]["json_schema"] == {"name": "n", "schema": {"type": "object"}, "strict": True}
        assert fields["tools"][0]["function"]["name"] == fields["tool_choice"]["function"]["name"] == "weather"
        assert (fields["reasoning_effort"], fields["max_completion_tokens"]) == ("low", 7)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"store": True}, "store"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input.0.content.0.image_url",
        ),
        ({"input": [{"type": "function_call", "call_id": "a", "name": "f"}]}, "input.0.arguments"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": 9}, "temperature"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "xml"}}}, "text.format"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"reasoning": {"summary": "auto"}}, "reasoning.summary"),
        ({"truncation": "auto"}, "truncation"),
        ({"frequency_penalty": 1}, "frequency_penalty"),
    ],
)
def test_what_is_refused_is_named(scripted, fields, param):
    with scripted.gateway.client() as http:
        response = http.post("/v1/responses", json={"model": "hermes", "input": "Hello!"} | fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param, response.text


def test_more_than_the_context(client):
    with pytest.raises(BadRequestError, match="maximum context length is") as error:
        create(client, max_output_tokens=100_000)
    assert error.value.code == "context_length_exceeded"
