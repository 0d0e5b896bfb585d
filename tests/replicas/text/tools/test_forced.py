"""Forced calls: xgrammar takes the constraints, which let through what the format's own parser reads, and no more."""

from __future__ import annotations

import json
from typing import Any

import pytest

from replicas.text.tools.forced import forced_calls, strict_calls
from replicas.text.tools.formats import TOOL_FORMATS, ToolFormat
from tests.support.answers import calls_of, parse
from tests.support.constraints import accepts

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "f", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "get.x"}},
]
MARKED = ("hermes", "mistral")


@pytest.fixture(params=TOOL_FORMATS)
def form(request: pytest.FixtureRequest) -> ToolFormat:
    return TOOL_FORMATS[request.param]


def write(form: ToolFormat, *calls: tuple[str, Any]) -> str:
    return form.write([(name, json.dumps(arguments)) for name, arguments in calls])


def test_calls_are_let_through(form: ToolFormat) -> None:
    grammar = forced_calls(form, TOOLS, at_most_one=False)
    for calls in ([("f", {"a": 1})], [("get.x", {})], [("f", {"a": -7}), ("get.x", {}), ("f", {"a": 2})]):
        text = write(form, *calls)
        assert accepts(grammar, text)
        assert calls_of(parse(form.parser({"f", "get.x"}), list(text))) == calls


def test_nothing_else_is(form: ToolFormat) -> None:
    grammar = forced_calls(form, TOOLS, at_most_one=False)
    call = write(form, ("f", {"a": 1}))
    for text in ("", "No.", f"So: {call}", f"{call} done", call[:-1], write(form, ("g", {})), write(form, ("f", {}))):
        assert not accepts(grammar, text)
    assert not accepts(grammar, write(form, ("f", {"a": "one"})))


def test_one_call_is_enough_where_one_is_wanted(form: ToolFormat) -> None:
    grammar = forced_calls(form, TOOLS, at_most_one=True)
    assert accepts(grammar, write(form, ("f", {"a": 1})))
    assert not accepts(grammar, write(form, ("f", {"a": 1}), ("f", {"a": 2})))


def test_a_named_call_is_of_that_tool(form: ToolFormat) -> None:
    grammar = forced_calls(form, TOOLS[:1], at_most_one=True)
    assert accepts(grammar, write(form, ("f", {"a": 1})))
    assert not accepts(grammar, write(form, ("get.x", {})))


@pytest.mark.parametrize("name", MARKED)
def test_strict_tools_are_held_to_their_schemas_in_a_free_answer(name: str) -> None:
    form = TOOL_FORMATS[name]
    strict = [{"type": "function", "function": TOOLS[0]["function"] | {"strict": True}}, TOOLS[1]]
    grammar = strict_calls(form, strict, at_most_one=False)
    assert accepts(grammar, "No call.")
    assert accepts(grammar, "So: " + write(form, ("f", {"a": 1})) + " done")
    assert accepts(grammar, write(form, ("get.x", {"anything": [1]})))
    assert not accepts(grammar, write(form, ("f", {"a": "one"})))


@pytest.mark.parametrize("name", sorted({*TOOL_FORMATS} - {*MARKED}))
def test_strict_tools_are_refused_where_nothing_marks_a_call(name: str) -> None:
    with pytest.raises(ValueError, match="only true if tool_choice is 'required'"):
        strict_calls(TOOL_FORMATS[name], TOOLS, at_most_one=False)
