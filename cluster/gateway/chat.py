"""POST /v1/chat/completions: the chat template on the way in, one assistant message on the way out."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from starlette.responses import JSONResponse, Response

from cluster.gateway.caller import Caller
from cluster.gateway.chat_message import delta, message
from cluster.gateway.chat_parts import Portion, portions
from cluster.gateway.chat_protocol import ChatRequest
from cluster.gateway.chat_steering import plan_chat
from cluster.gateway.logprobs import chat_logprobs, prompt_logprobs
from cluster.gateway.requests import Endpoint, Job, new_job
from cluster.gateway.service import GatewayService
from cluster.gateway.sse import DONE, event, quote, stream
from cluster.gateway.text_stream import ScoredToken
from cluster.gateway.usage import usage
from replicas.text.parts import Content, joined

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
    plan = await gateway.off_loop(partial(plan_chat, gateway.model(body.model), body))
    return await new_job(gateway, CHAT, body, [plan.token_ids], caller, arrival, plan.steering)


async def answer_chat(job: Job[ChatRequest]) -> Response:
    """Raises ApiError before the first byte; afterwards a stream ends with an error event."""
    if job.body.stream:
        return await stream(_events(job))
    answers: list[list[Portion]] = [[] for _ in job.generations]
    async with aclosing(portions(job)) as merged:
        async for portion in merged:
            answers[portion.index].append(portion)
    choices = [_whole(job, answer) for answer in answers]
    whole = job.frame | {"choices": choices, "usage": await usage(job.generations)}
    if job.body.prompt_logprobs is not None:
        first = job.generations[0]
        whole["prompt_logprobs"] = prompt_logprobs(
            job.model.tokenizer, first.request.token_ids, first.prompt_logprobs, job.body.prompt_logprobs
        )
    return JSONResponse(whole)


def _whole(job: Job[ChatRequest], answer: list[Portion]) -> dict[str, Any]:
    scored = [token for portion in answer for token in portion.scored]
    return {
        "index": answer[-1].index,
        "message": message(joined(part for portion in answer for part in portion.parts)),
        "logprobs": _logprobs(job, scored),
        "finish_reason": answer[-1].finish_reason,
    }


async def _events(job: Job[ChatRequest]) -> AsyncGenerator[bytes]:
    choices = [_StreamedChoice(job, index) for index in range(len(job.generations))]
    async with aclosing(portions(job)) as merged:
        async for portion in merged:
            if events := choices[portion.index].events(portion):
                yield events
    if job.body.include_usage:
        yield event(job.chunk_frame | {"choices": [], "usage": await usage(job.generations)})
    yield DONE


class _StreamedChoice:
    """One choice's chunks. The first has the role; log probabilities stand with the next part after their tokens."""

    def __init__(self, job: Job[ChatRequest], index: int) -> None:
        self._job = job
        self._index = index
        self._scored: list[ScoredToken] = []
        self._content = self._chunk({"content": ""}).split(b'""', 1)
        self._prelude = self._chunk({"role": "assistant", "content": ""})

    def events(self, portion: Portion) -> bytes:
        self._scored += portion.scored
        chunks = []
        for part in portion.parts:
            if isinstance(part, Content) and not self._scored:
                head, tail = self._content
                chunks.append(head + quote(part.text) + tail)
            else:
                chunks.append(self._chunk(delta(part)))
        if portion.finish_reason is not None:
            chunks.append(self._chunk({}, portion.finish_reason))
        if chunks:
            chunks.insert(0, self._prelude)
            self._prelude = b""
        return b"".join(chunks)

    def _chunk(self, new: dict[str, Any], finish_reason: str | None = None) -> bytes:
        scored, self._scored = self._scored, []
        logprobs = _logprobs(self._job, scored) if scored else None
        choice = {"index": self._index, "delta": new, "logprobs": logprobs, "finish_reason": finish_reason}
        return event(self._job.chunk_frame | {"choices": [choice]})


def _logprobs(job: Job[ChatRequest], scored: Sequence[ScoredToken]) -> dict[str, Any] | None:
    if not job.body.logprobs:
        return None
    return chat_logprobs(job.model.tokenizer, scored, job.body.skip_special_tokens)
