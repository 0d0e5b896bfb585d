"""From messages as clients send them to messages as chat templates expect them: content is one string, arguments of
tool calls are mappings, results of tools have the tool's name, and what is null or empty is left out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Message = dict[str, Any]


def template_messages(messages: Sequence[Mapping[str, Any]], fit_id: Callable[[str], str] = str) -> list[Message]:
    """`fit_id` gives the ids of calls the form that the template takes. Raises ValueError that names the field, such as
    messages[1].tool_calls[0].function.arguments."""
    plain = [_template_message(message, f"messages[{index}]") for index, message in enumerate(messages)]
    names: dict[str, str] = {}
    for message in plain:
        for call in message.get("tool_calls", ()):
            if isinstance(call.get("id"), str):
                names[call["id"]] = call["function"].get("name", "")
                call["id"] = fit_id(call["id"])
        if message.get("role") == "tool" and isinstance(answered := message.get("tool_call_id"), str):
            if answered in names:
                message.setdefault("name", names[answered])
            message["tool_call_id"] = fit_id(answered)
    return plain


def _template_message(message: Mapping[str, Any], field: str) -> Message:
    """Templates read reasoning under either of its two names."""
    plain = {key: value for key, value in message.items() if value is not None}
    plain["content"] = _text(plain.get("content", ""), f"{field}.content")
    if (reasoning := plain.get("reasoning_content", plain.get("reasoning"))) is not None:
        plain["reasoning_content"] = plain["reasoning"] = reasoning
    tool_calls = plain.pop("tool_calls", None)
    if tool_calls:
        plain["tool_calls"] = [
            _tool_call(call, f"{field}.tool_calls[{index}]") for index, call in enumerate(tool_calls)
        ]
    return plain


def _text(content: object, field: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ValueError(f"{field} must be a string or a list of parts")
    return "".join(_part_text(part, f"{field}[{index}]") for index, part in enumerate(content))


def _part_text(part: object, field: str) -> str:
    if not isinstance(part, Mapping):
        raise ValueError(f"{field} must be an object with the fields type and text")
    if part.get("type") != "text":
        raise ValueError(f"{field}.type is {part.get('type')!r}, but this model takes only 'text'")
    if not isinstance(part.get("text"), str):
        raise ValueError(f"{field}.text must be a string")
    return str(part["text"])


def _tool_call(call: object, field: str) -> Message:
    if not isinstance(call, Mapping) or not isinstance(call.get("function"), Mapping):
        raise ValueError(f"{field} must be an object with the field function")
    function = call["function"]
    arguments = _arguments(function.get("arguments"), f"{field}.function.arguments")
    return {**call, "function": {**function, "arguments": arguments}}


def _arguments(arguments: object, field: str) -> Mapping[str, Any]:
    if arguments is None or arguments == "":
        return {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except json.JSONDecodeError as error:
            raise ValueError(f"{field} is not valid JSON: {error}") from error
        except (ValueError, RecursionError):
            raise ValueError(f"{field} is nested too deeply or has a number with thousands of digits") from None
    if not isinstance(arguments, Mapping):
        raise ValueError(f"{field} must be a JSON object")
    return arguments
