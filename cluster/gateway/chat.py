"""POST /v1/chat/completions: the chat template on the way in, one assistant message on the way out."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.responses import JSONResponse, Response

from cluster.gateway.errors import bad_request
from cluster.gateway.generation import Delta, Generation, merge
from cluster.gateway.protocol import ChatRequest, Message
from cluster.gateway.requests import new_generation, new_id, now_seconds
from cluster.gateway.service import GatewayService
from cluster.gateway.sse import DONE, event, quote, stream
from cluster.gateway.usage import usage


async def chat_completion(gateway: GatewayService, body: ChatRequest, arrival: float) -> Response:
    """Raises ApiError before the first byte; afterwards a stream ends with an error event."""
    model = gateway.model(body.model)
    messages = [_plain(message) for message in body.messages]
    try:
        token_ids = await gateway.off_loop(lambda: model.renderer.encode(messages))
    except ValueError as error:
        raise bad_request(f"{str(error).rstrip('.')}.", "messages") from None
    request_id = new_id("chatcmpl")
    generation = new_generation(
        gateway, model, body, request_id, token_ids, body.output_limit, None, 0, "messages", arrival
    )
    frame = {"id": request_id, "object": "chat.completion", "created": now_seconds(), "model": model.id}
    if body.stream:
        return await stream(_events(generation, frame | {"object": "chat.completion.chunk"}, body.include_usage))
    async with aclosing(merge([generation])) as deltas:
        parts = [delta.text async for delta in deltas]
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "".join(parts)},
        "logprobs": None,
        "finish_reason": generation.text.finish_reason,
    }
    return JSONResponse(frame | {"choices": [choice], "usage": await usage([generation])})


async def _events(generation: Generation, frame: dict[str, Any], include_usage: bool) -> AsyncGenerator[bytes]:
    def chunk(delta: dict[str, Any], finish_reason: str | None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return event(frame | {"choices": [choice]})

    head, tail = chunk({"content": ""}, None).split(b'""', 1)
    prelude = chunk({"role": "assistant", "content": ""}, None)
    async with aclosing(merge([generation])) as deltas:
        async for delta in deltas:
            yield prelude + _content(delta, head, tail) + _end(delta, chunk)
            prelude = b""
    if include_usage:
        yield event(frame | {"choices": [], "usage": await usage([generation])})
    yield DONE


def _content(delta: Delta, head: bytes, tail: bytes) -> bytes:
    return head + quote(delta.text) + tail if delta.text else b""


def _end(delta: Delta, chunk: Any) -> bytes:
    return chunk({}, delta.finish_reason) if delta.finish_reason is not None else b""


def _plain(message: Message) -> dict[str, Any]:
    """The message as chat templates expect it; an assistant's empty list of calls is no list."""
    plain = message.model_dump(exclude_none=True)
    if not plain.get("tool_calls"):
        plain.pop("tool_calls", None)
    return plain
