"""POST /v1/chat/completions: the chat template on the way in, one assistant message on the way out."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.responses import JSONResponse, Response

from cluster.gateway.caller import Caller
from cluster.gateway.generation import Delta, merge
from cluster.gateway.protocol import ChatRequest, Message
from cluster.gateway.requests import Endpoint, Job, new_job
from cluster.gateway.service import GatewayService, ModelService
from cluster.gateway.sse import DONE, event, quote, stream
from cluster.gateway.usage import usage

CHAT = Endpoint(
    id_prefix="chatcmpl",
    object="chat.completion",
    chunk_object="chat.completion.chunk",
    prompt_field="messages",
    default_max_tokens=None,
    continues_text=False,
)


async def prepare_chat(gateway: GatewayService, body: ChatRequest, caller: Caller, arrival: float) -> Job:
    """Raises ApiError if the request cannot be served."""

    def prompt(model: ModelService) -> list[int]:
        return model.renderer.encode(list(map(_plain, body.messages)), limit=model.info.max_model_len)

    return await new_job(gateway, CHAT, body, [prompt], caller, arrival)


async def answer_chat(job: Job) -> Response:
    """Raises ApiError before the first byte; afterwards a stream ends with an error event."""
    if job.stream:
        return await stream(_events(job))
    async with aclosing(merge(job.generations)) as deltas:
        parts = [delta.text async for delta in deltas]
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "".join(parts)},
        "logprobs": None,
        "finish_reason": job.generations[0].text.finish_reason,
    }
    return JSONResponse(job.frame | {"choices": [choice], "usage": await usage(job.generations)})


async def _events(job: Job) -> AsyncGenerator[bytes]:
    def chunk(delta: dict[str, Any], finish_reason: str | None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return event(job.chunk_frame | {"choices": [choice]})

    head, tail = chunk({"content": ""}, None).split(b'""', 1)
    prelude = chunk({"role": "assistant", "content": ""}, None)
    async with aclosing(merge(job.generations)) as deltas:
        async for delta in deltas:
            yield prelude + _content(delta, head, tail) + _end(delta, chunk)
            prelude = b""
    if job.include_usage:
        yield event(job.chunk_frame | {"choices": [], "usage": await usage(job.generations)})
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
