"""Reasoning over HTTP: apart from the content, streamed and whole, and told to the template where it knows how."""

from __future__ import annotations

import json

import pytest

from tests.support.scripted import alike, joined_message
from tests.support.sse import refused

CHAT = "/v1/chat/completions"
TOOLS = [{"type": "function", "function": {"name": "f"}}]


def both_ways(scripted, chats, model, text, **fields):
    whole, streamed = scripted.ask(chats, model, text, **fields)
    choice = whole["choices"][0]
    assert alike(choice["message"], joined_message(streamed))
    assert streamed.reasons[0] == choice["finish_reason"]
    message = choice["message"]
    return message.get("reasoning_content"), message["content"], choice["finish_reason"]


@pytest.mark.parametrize(
    ("model", "text", "reasoning", "content"),
    [
        ("thinking", "<think>a</think>x</think>y", "a", "x</think>y"),
        ("thinking", "<think></think>z", None, "z"),
        ("thinking", "no marks", None, "no marks"),
        ("opened", "a</think>x</think>y", "a", "x</think>y"),
        ("opened", "\nplan X\nstep\n</think>\n\nanswer", "plan X\nstep", "answer"),
        ("opened", "</think>z", None, "z"),
        ("opened", "no end", "no end", None),
        ("json", "<think>a</think>b", None, "<think>a</think>b"),
    ],
)
def test_only_the_first_closing_mark_splits(scripted, chats, model, text, reasoning, content):
    assert both_ways(scripted, chats, model, text) == (reasoning, content, "stop")


@pytest.mark.parametrize("model", ["thinking", "opened"])
def test_an_answer_cut_anywhere_shows_no_mark(scripted, chats, model):
    text = ("<think>" if model == "thinking" else "") + "plan</think>so it is"
    length = len(scripted.script.tokens(scripted.script.add(text)))
    for most in range(1, length):
        reasoning, content, reason = both_ways(scripted, chats, model, text, max_tokens=most)
        assert reason == "length"
        assert "plan".startswith(reasoning or "")
        assert "so it is".startswith(content or "")


@pytest.mark.parametrize("stop", [["\n"], ["✿END✿"], ["think>"], ["</think>"], ["plan"]])
def test_stop_strings_count_in_the_answer_alone(scripted, chats, stop):
    text = "<think>plan X\nstep</think>answer"
    assert both_ways(scripted, chats, "thinking", text, stop=stop) == ("plan X\nstep", "answer", "stop")
    assert both_ways(scripted, chats, "opened", text.removeprefix("<think>"), stop=stop) == (
        "plan X\nstep",
        "answer",
        "stop",
    )


def test_a_stop_string_in_the_answer_ends_it(scripted, chats):
    text = "<think>no</think>yes and no"
    assert both_ways(scripted, chats, "thinking", text, stop=["no"]) == ("no", "yes and ", "stop")


def test_switched_off_nothing_is_opened(scripted, chats):
    fields = {"chat_template_kwargs": {"enable_thinking": False}}
    assert both_ways(scripted, chats, "opened", "plain", **fields) == (None, "plain", "stop")
    assert both_ways(scripted, chats, "opened", "plain", reasoning_effort="none") == (None, "plain", "stop")
    assert both_ways(scripted, chats, "opened", "a</think>b", reasoning_effort="high") == ("a", "b", "stop")


def test_reasoning_may_be_left_out(scripted, chats):
    assert both_ways(scripted, chats, "opened", "a</think>b", include_reasoning=False) == (None, "b", "stop")


def test_calls_follow_reasoning(scripted, chats):
    text = 'I call {"name": "f"}.</think>\n\n{"name": "f", "arguments": {"a": 1}}'
    whole, streamed = scripted.ask(chats, "opened", text, tools=TOOLS)
    message = whole["choices"][0]["message"]
    assert alike(message, joined_message(streamed))
    assert message["reasoning_content"] == 'I call {"name": "f"}.'
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"a": 1}
    assert whole["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_earlier_reasoning_is_taken_under_either_name(scripted, chats, name):
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "yes", name: "hm"},
        {"role": "user", "content": "and?"},
    ]
    scripted.ask(chats, "thinking", "b", messages=messages)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"chat_template_kwargs": {"colour": "red"}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"range": 1}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs"),
        ({"thinking_token_budget": 100}, "thinking_token_budget"),
        ({"thinking_token_budget": -1}, "thinking_token_budget"),
        ({"reasoning_effort": "maximal"}, "reasoning_effort"),
    ],
)
def test_what_the_template_does_not_know_is_refused_by_name(scripted, chats, fields, param):
    refused(chats.post(CHAT, json=scripted.body("thinking", "no", **fields)), param=param)


def test_an_effort_is_refused_where_nothing_knows_of_it(scripted, chats):
    refused(chats.post(CHAT, json=scripted.body("json", "no", reasoning_effort="low")), param="reasoning_effort")


def test_a_budget_reaches_a_template_that_knows_it(scripted, chats):
    template = "{{ thinking_budget }}{% if reasoning_effort %} {{ reasoning_effort }}{% endif %}"
    body = scripted.body("json", "b", chat_template=template, thinking_token_budget=12345, reasoning_effort="xhigh")
    answer = chats.post(CHAT, json=body).json()
    tokenizer = scripted.gateway.service.models["json"].tokenizer
    ids = tokenizer.encode("12345 xhigh", add_bos=False, parse_special=True)
    assert answer["usage"]["prompt_tokens"] == len(ids)


class TestTheFinalMessage:
    HISTORY = ({"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well, I"})

    def test_is_continued(self, scripted, chats):
        whole, streamed = scripted.ask(
            chats, "json", " think so.", messages=self.HISTORY, continue_final_message=True, add_generation_prompt=False
        )
        assert whole["choices"][0]["message"]["content"] == " think so." == joined_message(streamed)["content"]
        tokenizer = scripted.gateway.service.models["json"].tokenizer
        text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nWell, I"
        ids = tokenizer.encode(text, add_bos=False, parse_special=True)
        assert whole["usage"]["prompt_tokens"] == len(ids)

    def test_may_leave_off_inside_reasoning(self, scripted, chats):
        messages = [self.HISTORY[0], {"role": "assistant", "content": "<think>Let me"}]
        fields = {"messages": messages, "continue_final_message": True, "chat_template": None}
        template = "{% for message in messages %}{{ message.content }}{% endfor %}{# </think> #}"
        found = both_ways(scripted, chats, "json", " see</think>yes", **fields | {"chat_template": template})
        assert found == (" see", "yes", "stop")

    def test_need_not_be_asked_to_be_answered(self, scripted, chats):
        whole, _ = scripted.ask(chats, "json", "b", add_generation_prompt=False)
        text = "<|im_start|>user\nGo on.<|im_end|>\n"
        tokenizer = scripted.gateway.service.models["json"].tokenizer
        assert whole["usage"]["prompt_tokens"] == len(tokenizer.encode(text, add_bos=False, parse_special=True))

    @pytest.mark.parametrize(
        "fields",
        [
            {"messages": HISTORY, "add_generation_prompt": True},
            {"messages": HISTORY[:1]},
            {"messages": [HISTORY[0], {"role": "assistant", "content": ""}]},
        ],
    )
    def test_cannot_always_be_continued(self, scripted, chats, fields):
        body = scripted.body("json", "no", continue_final_message=True, **fields)
        refused(chats.post(CHAT, json=body), param="continue_final_message")


class TestTemplatesOfTheCaller:
    def test_are_rendered_where_they_are_allowed(self, scripted, chats):
        whole, _ = scripted.ask(chats, "json", "b", chat_template="{{ messages[0].content }}")
        tokenizer = scripted.gateway.service.models["json"].tokenizer
        assert whole["usage"]["prompt_tokens"] == len(tokenizer.encode("Go on.", add_bos=False, parse_special=True))

    def test_are_refused_elsewhere(self, scripted, chats):
        refused(chats.post(CHAT, json=scripted.body("hermes", "b", chat_template="x")), param="chat_template")

    @pytest.mark.parametrize("template", ["{% for %}", "{{ 1 // 0 }}", "{{ ''.__class__.mro() }}"])
    def test_that_cannot_be_rendered_are_the_callers_fault(self, scripted, chats, template):
        refused(chats.post(CHAT, json=scripted.body("json", "b", chat_template=template)), param="messages")

    @pytest.mark.parametrize("stream", [False, True])
    def test_refuse_in_their_own_words(self, scripted, chats, stream):
        body = scripted.body("json", "b", chat_template="{{ raise_exception('No system role here') }}", stream=stream)
        assert refused(chats.post(CHAT, json=body), param="messages") == "No system role here."
