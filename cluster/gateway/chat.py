"""POST /v1/chat/completions: the chat template on the way in, one assistant message on the way out."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from starlette.responses import JSONResponse, Response

from cluster.gateway.caller import Caller
from cluster.gateway.generation import Delta, merge
from cluster.gateway.logprobs import chat_logprobs
from cluster.gateway.protocol import ChatRequest, Message
from cluster.gateway.requests import Endpoint, Job, new_job
from cluster.gateway.service import GatewayService, ModelService
from cluster.gateway.sse import DONE, event, quote, stream
from cluster.gateway.text_stream import ScoredToken
from cluster.gateway.usage import usage

CHAT = Endpoint(
    id_prefix="chatcmpl",
    object="chat.completion",
    chunk_object="chat.completion.chunk",
    prompt_field="messages",
    default_max_tokens=None,
    continues_text=False,
)


async def prepare_chat(gateway: GatewayService, body: ChatRequest, caller: Caller, arrival: float) -> Job[ChatRequest]:
    """Raises ApiError if the request cannot be served."""

    def prompt(model: ModelService, limit: int | None) -> list[int]:
        return model.renderer.encode(list(map(_plain, body.messages)), limit=limit)

    return await new_job(gateway, CHAT, body, [prompt], caller, arrival)


async def answer_chat(job: Job[ChatRequest]) -> Response:
    """Raises ApiError before the first byte; afterwards a stream ends with an error event."""
    if job.body.stream:
        return await stream(_events(job))
    deltas: list[list[Delta]] = [[] for _ in job.generations]
    async with aclosing(merge(job.generations)) as merged:
        async for delta in merged:
            deltas[delta.index].append(delta)
    choices = [_whole(job, some) for some in deltas]
    return JSONResponse(job.frame | {"choices": choices, "usage": await usage(job.generations)})


def _whole(job: Job[ChatRequest], deltas: list[Delta]) -> dict[str, Any]:
    scored = [token for delta in deltas for token in delta.scored]
    return {
        "index": deltas[-1].index,
        "message": {"role": "assistant", "content": "".join(delta.text for delta in deltas)},
        "logprobs": _logprobs(job, scored),
        "finish_reason": deltas[-1].finish_reason,
    }


async def _events(job: Job[ChatRequest]) -> AsyncGenerator[bytes]:
    def chunk(index: int, delta: dict[str, Any], logprobs: Any = None, finish_reason: str | None = None) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return event(job.chunk_frame | {"choices": [choice]})

    frames = [chunk(index, {"content": ""}).split(b'""', 1) for index in range(len(job.generations))]
    preludes = [chunk(index, {"role": "assistant", "content": ""}) for index in range(len(job.generations))]
    async with aclosing(merge(job.generations)) as deltas:
        async for delta in deltas:
            index, content, end = delta.index, b"", b""
            head, tail = frames[index]
            if job.body.logprobs and delta.scored:
                content = chunk(index, {"content": delta.text}, _logprobs(job, delta.scored))
            elif delta.text:
                content = head + quote(delta.text) + tail
            if delta.finish_reason is not None:
                end = chunk(index, {}, finish_reason=delta.finish_reason)
            yield preludes[index] + content + end
            preludes[index] = b""
    if job.body.include_usage:
        yield event(job.chunk_frame | {"choices": [], "usage": await usage(job.generations)})
    yield DONE


def _logprobs(job: Job[ChatRequest], scored: Sequence[ScoredToken]) -> dict[str, Any] | None:
    if not job.body.logprobs:
        return None
    return chat_logprobs(job.model.tokenizer, scored, job.body.skip_special_tokens)


def _plain(message: Message) -> dict[str, Any]:
    """The message as chat templates expect it; an assistant's empty list of calls is no list."""
    plain = message.model_dump(exclude_none=True)
    if not plain.get("tool_calls"):
        plain.pop("tool_calls", None)
    return plain
