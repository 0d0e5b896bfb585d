"""Parts of an answer in OpenAI's words: whole, as a message, and one by one, as the deltas of a stream."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from replicas.text.parts import CallArguments, CallStart, Content, Part, Reasoning


def message(parts: Iterable[Part]) -> dict[str, Any]:
    """The assistant's message. Its content is null only if there is something else in its place."""
    content, reasoning = "", ""
    calls: list[dict[str, Any]] = []
    for part in parts:
        match part:
            case Content(text):
                content += text
            case Reasoning(text):
                reasoning += text
            case CallStart(_, call_id, name):
                calls.append({"id": call_id, "type": "function", "function": {"name": name, "arguments": ""}})
            case CallArguments(index, text):
                calls[index]["function"]["arguments"] += text
    whole: dict[str, Any] = {"role": "assistant", "content": content}
    if reasoning:
        whole["reasoning_content"] = reasoning
    if calls:
        whole["tool_calls"] = calls
    if not content and len(whole) > 2:
        whole["content"] = None
    return whole


def delta(part: Part) -> dict[str, Any]:
    match part:
        case Content(text):
            return {"content": text}
        case Reasoning(text):
            return {"reasoning_content": text}
        case CallStart(index, call_id, name):
            call = {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
            return {"tool_calls": [call]}
        case CallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
