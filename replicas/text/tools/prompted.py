"""Tools for templates that know none: they are described in the system message, calls are JSON in the assistant's own
words, and their results come from the user."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from replicas.text.tools.formats import ToolFormat

Message = dict[str, Any]


def describe_tools(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], form: ToolFormat) -> list[Message]:
    """The messages with what the model has to know of the tools at the end of its instructions."""
    functions = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    example = form.write([("name of the function", '{"name of an argument": "its value"}')])
    text = (
        f"You can call these functions:\n\n{functions}\n\n"
        f"To call one, answer with this and nothing else:\n\n{example}\n\n"
        "Call a function only if it helps to answer; else answer in your own words."
    )
    first = messages[0] if messages else {}
    if first.get("role") not in ("system", "developer"):
        return [{"role": "system", "content": text}, *messages]
    return [{**first, "content": f"{first['content']}\n\n{text}" if first["content"] else text}, *messages[1:]]


def spell_out_calls(messages: Sequence[Message], form: ToolFormat) -> list[Message]:
    """Earlier calls as the model wrote them, and their results as messages of the user, one for those that follow each
    other."""
    spelled: list[Message] = []
    previous = None
    for message in messages:
        if message.get("role") == "assistant" and "tool_calls" in message:
            plain = {key: value for key, value in message.items() if key != "tool_calls"}
            written = form.write([_call(call) for call in message["tool_calls"]])
            plain["content"] = f"{message['content']}\n\n{written}" if message["content"] else written
            spelled.append(plain)
        elif message.get("role") == "tool":
            result = f"{message.get('name', 'The function')} returned:\n{message['content']}"
            if previous == "tool":
                spelled[-1]["content"] += f"\n\n{result}"
            else:
                spelled.append({"role": "user", "content": result})
        else:
            spelled.append(message)
        previous = message.get("role")
    return spelled


def _call(call: Mapping[str, Any]) -> tuple[str, str]:
    function = call["function"]
    return str(function.get("name", "")), json.dumps(function["arguments"], ensure_ascii=False)
