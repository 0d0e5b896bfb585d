"""Conversations and tools in other words than a chat's, as chats have them. Such a conversation may have several
messages of one role after each other; chat templates want roles to alternate."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Message = dict[str, Any]

BETWEEN = "\n\n"


def text_part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def function_tool(name: str, description: str | None, parameters: Any, strict: bool | None) -> dict[str, Any]:
    function = {"name": name, "description": description, "parameters": parameters, "strict": strict}
    return {"type": "function", "function": function}


def merged(messages: Iterable[Message]) -> list[Message]:
    """Neighbours of one role as one message, but for the results of tools. Contents are lists of parts."""
    turns: list[Message] = []
    for message in messages:
        last = turns[-1] if turns else None
        if last is None or last["role"] != message["role"] or message["role"] == "tool":
            turns.append(message)
        else:
            _extend(last, message)
    return turns


def _extend(last: Message, message: Message) -> None:
    if last["content"] and message["content"]:
        last["content"] = [*last["content"], text_part(BETWEEN)]
    for name in message.keys() - {"role"}:
        last[name] = last[name] + message[name] if name in last else message[name]
