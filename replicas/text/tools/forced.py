"""Constraints that make a model call tools, in the form in which it writes calls: xgrammar's structural tags."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from replicas.sampling.grammar_spec import Grammar
from replicas.text.tools.formats import ToolFormat

Format = dict[str, Any]


def forced_calls(form: ToolFormat, tools: Sequence[Mapping[str, Any]], at_most_one: bool) -> Grammar:
    """An answer that consists of calls, at least one, of functions among `tools`, whose arguments fit their schemas."""
    calls: Format = {
        "type": "tags_with_separator",
        "tags": [_tag(form, tool, json_schema=_parameters(tool)) for tool in tools],
        "separator": form.separator,
        "at_least_one": True,
        "stop_after_first": at_most_one,
    }
    around = [_text(form.before), calls, _text(form.behind)]
    elements = [element for element in around if element.get("value") != ""]
    return _grammar(elements[0] if len(elements) == 1 else {"type": "sequence", "elements": elements})


def strict_calls(form: ToolFormat, tools: Sequence[Mapping[str, Any]], at_most_one: bool) -> Grammar:
    """An answer that may hold calls, whose arguments fit the schemas of functions that are strict. Raises ValueError
    for a format in which nothing marks the beginning of a call."""
    trigger = next((mark for mark in form.marks if form.begin("").startswith(mark)), None)
    if trigger is None:
        raise ValueError("only true if tool_choice is 'required' or names the function, with this model's tool calls")
    tags = [
        _tag(form, tool, json_schema=_parameters(tool) if tool["function"].get("strict") else {"type": "object"})
        for tool in tools
    ]
    return _grammar({"type": "triggered_tags", "triggers": [trigger], "tags": tags, "stop_after_first": at_most_one})


def _tag(form: ToolFormat, tool: Mapping[str, Any], json_schema: Any) -> Format:
    content = {"type": "json_schema", "json_schema": json_schema}
    return {"type": "tag", "begin": form.begin(tool["function"]["name"]), "content": content, "end": form.end}


def _parameters(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"type": "object", **(tool["function"].get("parameters") or {"additionalProperties": False})}


def _text(value: str) -> Format:
    return {"type": "const_string", "value": value}


def _grammar(content: Format) -> Grammar:
    tag = {"type": "structural_tag", "format": content}
    return Grammar("structural_tag", json.dumps(tag, ensure_ascii=False))
