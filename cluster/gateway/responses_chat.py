"""A request to /v1/responses as the chat that it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cluster.gateway.responses_protocol import (
    CallItem,
    CallOutputItem,
    Content,
    FunctionTool,
    Item,
    MessageItem,
    NamedFunction,
    ReasoningItem,
    ResponsesRequest,
)
from cluster.gateway.turns import Message, function_tool, merged, text_part


def chat_fields(body: ResponsesRequest) -> dict[str, Any]:
    """The body of a chat request."""
    return {
        "model": body.model,
        "messages": merged(_conversation(body)),
        "max_completion_tokens": body.max_output_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "tools": [_tool(tool) for tool in body.tools] if body.tools else None,
        "tool_choice": _tool_choice(body.tool_choice),
        "parallel_tool_calls": body.parallel_tool_calls,
        "response_format": _response_format(body),
        "reasoning_effort": body.reasoning.effort if body.reasoning is not None else None,
        "stream": body.stream,
        "service_tier": body.service_tier,
    }


def _conversation(body: ResponsesRequest) -> Iterator[Message]:
    items = [MessageItem(role="user", content=body.input)] if isinstance(body.input, str) else body.input
    if body.instructions:
        first = items[0]
        role = "developer" if isinstance(first, MessageItem) and first.role == "developer" else "system"
        yield {"role": role, "content": [text_part(body.instructions)]}
    yield from map(_message, items)


def _message(item: Item) -> Message:
    match item:
        case MessageItem(role=role, content=content):
            return {"role": role, "content": _parts(content)}
        case CallItem():
            function = {"name": item.name, "arguments": item.arguments}
            calls = [{"id": item.call_id, "type": "function", "function": function}]
            return {"role": "assistant", "content": [], "tool_calls": calls}
        case CallOutputItem(call_id=call_id, output=output):
            return {"role": "tool", "tool_call_id": call_id, "content": _parts(output)}
        case ReasoningItem(content=content):
            reasoning = "".join(part.text for part in content or ())
            return {"role": "assistant", "content": [], "reasoning_content": reasoning}


def _parts(content: Content) -> list[dict[str, str]]:
    return [text_part(content)] if isinstance(content, str) else [text_part(part.text) for part in content]


def _tool(tool: FunctionTool) -> dict[str, Any]:
    return function_tool(tool.name, tool.description, tool.parameters, tool.strict)


def _tool_choice(choice: str | NamedFunction | None) -> str | dict[str, Any] | None:
    if isinstance(choice, NamedFunction):
        return {"type": "function", "function": {"name": choice.name}}
    return choice


def _response_format(body: ResponsesRequest) -> dict[str, Any] | None:
    form = body.text.format if body.text is not None else None
    if form is None or form["type"] != "json_schema":
        return form
    return {"type": "json_schema", "json_schema": {key: value for key, value in form.items() if key != "type"}}
