"""A request to /v1/messages as the chat that it is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from cluster.gateway.anthropic_protocol import (
    AnyBlock,
    CountTokensRequest,
    MessagesRequest,
    TextBlock,
    ThinkingBlock,
    Tool,
    ToolChoice,
    ToolResultBlock,
    ToolUseBlock,
    Turn,
)
from cluster.gateway.turns import Message, function_tool, merged, text_part

ERROR = "Error: "  # before the result of a tool that failed: chat templates know no other way to say so


def chat_fields(body: CountTokensRequest, can_think: bool) -> dict[str, Any]:
    """The body of a chat request. `can_think`: whether the model's template knows of reasoning."""
    fields: dict[str, Any] = {"model": body.model, "messages": merged(_conversation(body))}
    if fields["messages"][-1]["role"] == "assistant":
        fields["continue_final_message"] = True
    if body.tools is not None:
        fields["tools"] = [_tool(tool) for tool in body.tools]
    if body.tool_choice is not None:
        fields["tool_choice"] = _tool_choice(body.tool_choice)
        fields["parallel_tool_calls"] = not body.tool_choice.disable_parallel_tool_use
    fields |= _thinking(body, can_think)
    return fields | _sampling(body) if isinstance(body, MessagesRequest) else fields


def _sampling(body: MessagesRequest) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "max_tokens": body.max_tokens,
        "stop": body.stop_sequences or None,
        "stream": body.stream,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
    }
    if body.output_config is not None and body.output_config.format is not None:
        schema = {"name": "answer", "schema": body.output_config.format["schema"], "strict": True}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    return fields


def _thinking(body: CountTokensRequest, can_think: bool) -> dict[str, Any]:
    thinking, config = body.thinking, body.output_config
    fields: dict[str, Any] = {}
    if config is not None and config.effort is not None:
        fields["reasoning_effort"] = config.effort
    if thinking is not None and thinking.type == "disabled" and can_think:
        fields["reasoning_effort"] = "none"
    if thinking is not None and thinking.budget_tokens is not None:
        fields["thinking_token_budget"] = thinking.budget_tokens
    return fields


def _conversation(body: CountTokensRequest) -> Iterator[Message]:
    if body.system:
        yield {"role": "system", "content": [text_part(_text(body.system))]}
    for turn in body.messages:
        yield from _messages(turn)


def _messages(turn: Turn) -> Iterator[Message]:
    """A turn of the user's with results of tools becomes several messages."""
    if isinstance(turn.content, str):
        yield {"role": turn.role, "content": [text_part(turn.content)]}
    elif turn.role == "assistant":
        yield _assistant(turn.content)
    else:
        for block in turn.content:
            if isinstance(block, ToolResultBlock):
                text = _text(block.content or "")
                content = ERROR + text if block.is_error else text
                yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}
            elif isinstance(block, TextBlock):
                yield {"role": turn.role, "content": [text_part(block.text)]}


def _assistant(blocks: Sequence[AnyBlock]) -> Message:
    message: Message = {"role": "assistant", "content": []}
    for block in blocks:
        match block:
            case TextBlock(text=text):
                message["content"].append(text_part(text))
            case ThinkingBlock(thinking=thinking):
                message["reasoning_content"] = message.get("reasoning_content", "") + thinking
            case ToolUseBlock():
                function = {"name": block.name, "arguments": json.dumps(block.input, ensure_ascii=False)}
                message.setdefault("tool_calls", []).append({"id": block.id, "type": "function", "function": function})
    return message


def _text(content: str | Sequence[TextBlock]) -> str:
    return content if isinstance(content, str) else "".join(block.text for block in content)


def _tool(tool: Tool) -> dict[str, Any]:
    return function_tool(tool.name, tool.description, tool.input_schema, tool.strict)


def _tool_choice(choice: ToolChoice) -> str | dict[str, Any]:
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    return {"any": "required"}.get(choice.type, choice.type)
