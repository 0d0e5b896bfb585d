"""A chat's answer as /v1/messages tells it: whole, or as events that build it up block by block."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any

from cluster.gateway.chat_parts import ChatFinishReason, portions
from cluster.gateway.chat_protocol import ChatRequest
from cluster.gateway.requests import Job
from cluster.gateway.sse import named_event
from replicas.text.parts import CallArguments, CallStart, Content, Part, Reasoning, joined

STOP_REASONS: dict[ChatFinishReason, str] = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}

Object = dict[str, Any]


async def whole_message(job: Job[ChatRequest]) -> Object:
    """Raises ApiError."""
    parts: list[Part] = []
    reason: ChatFinishReason | None = None
    async with aclosing(portions(job)) as merged:
        async for portion in merged:
            parts += portion.parts
            reason = portion.finish_reason
    assert reason is not None
    return _message(job, blocks(joined(parts))) | _end(job, reason) | {"usage": await _usage(job)}


async def message_events(job: Job[ChatRequest]) -> AsyncGenerator[bytes]:
    """Raises ApiError."""
    writer = BlockWriter()
    head = _event("message_start", message=_message(job, []) | {"usage": _first_usage(job)})
    async with aclosing(portions(job)) as merged:
        async for portion in merged:
            events = head + b"".join(map(writer.write, portion.parts))
            head = b""
            if portion.finish_reason is not None:
                yield (
                    events
                    + writer.close()
                    + _event("message_delta", delta=_end(job, portion.finish_reason), usage=await _usage(job))
                )
            elif events:
                yield events
    yield _event("message_stop")


def blocks(parts: Iterable[Part]) -> list[Object]:
    """The content of a whole message. The arguments of a call that was cut are left out."""
    content: list[Object] = []
    arguments: dict[int, str] = {}
    calls: dict[int, Object] = {}
    for part in parts:
        match part:
            case Content(text):
                content.append({"type": "text", "text": text})
            case Reasoning(text):
                content.append({"type": "thinking", "thinking": text, "signature": ""})
            case CallStart(index, call_id, name):
                calls[index] = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
                content.append(calls[index])
            case CallArguments(index, text):
                arguments[index] = arguments.get(index, "") + text
    for index, text in arguments.items():
        calls[index]["input"] = _parsed(text)
    return content


class BlockWriter:
    """The events of one message's blocks, which follow each other."""

    def __init__(self) -> None:
        self._index = -1
        self._open: type[Part] | None = None

    def write(self, part: Part) -> bytes:
        match part:
            case Content(text):
                return self._begin(Content, {"type": "text", "text": ""}) + self._delta("text_delta", text=text)
            case Reasoning(text):
                start = self._begin(Reasoning, {"type": "thinking", "thinking": "", "signature": ""})
                return start + self._delta("thinking_delta", thinking=text)
            case CallStart(_, call_id, name):
                return self._begin(CallStart, {"type": "tool_use", "id": call_id, "name": name, "input": {}})
            case CallArguments(_, text):
                return self._delta("input_json_delta", partial_json=text)

    def close(self) -> bytes:
        """The end of the block that is open."""
        if self._open is None:
            return b""
        self._open = None
        return _event("content_block_stop", index=self._index)

    def _begin(self, kind: type[Part], block: Object) -> bytes:
        """Nothing if a block of this kind goes on; every call has one of its own."""
        if self._open is kind and kind is not CallStart:
            return b""
        stop = self.close()
        self._index, self._open = self._index + 1, kind
        return stop + _event("content_block_start", index=self._index, content_block=block)

    def _delta(self, kind: str, **new: str) -> bytes:
        return _event("content_block_delta", index=self._index, delta={"type": kind, **new})


def _message(job: Job[ChatRequest], content: list[Object]) -> Object:
    return {
        "id": job.frame["id"],
        "type": "message",
        "role": "assistant",
        "model": job.model.id,
        "content": content,
        "stop_reason": None,
        "stop_sequence": None,
    }


def _end(job: Job[ChatRequest], reason: ChatFinishReason) -> Object:
    stop = job.generations[0].text.matched_stop
    matched = reason == "stop" and stop is not None
    return {
        "stop_reason": "stop_sequence" if matched else STOP_REASONS[reason],
        "stop_sequence": stop if matched else None,
    }


def _first_usage(job: Job[ChatRequest]) -> Object:
    """What is known before the engine has said how much of the prompt was cached."""
    return {
        "input_tokens": len(job.generations[0].request.token_ids),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 0,
    }


async def _usage(job: Job[ChatRequest]) -> Object:
    generation = job.generations[0]
    cached = await generation.cached_tokens()
    return _first_usage(job) | {
        "input_tokens": len(generation.request.token_ids) - cached,
        "cache_read_input_tokens": cached,
        "output_tokens": generation.text.num_tokens,
    }


def _parsed(arguments: str) -> Object:
    try:
        value = json.loads(arguments)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _event(kind: str, **fields: Any) -> bytes:
    return named_event(kind, {"type": kind, **fields})
