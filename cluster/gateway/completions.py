"""POST /v1/completions: bare prompts, as text or token ids, one choice for each.

A text is tokenized with the special tokens that it spells, since it is the caller's whole prompt, and gets the
model's BOS token if it has none and the model wants one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any

from starlette.responses import JSONResponse, Response

from cluster.gateway.caller import Caller
from cluster.gateway.generation import merge
from cluster.gateway.protocol import CompletionRequest
from cluster.gateway.requests import Endpoint, Job, new_job
from cluster.gateway.service import GatewayService, ModelService
from cluster.gateway.sse import DONE, event, quote, stream
from cluster.gateway.usage import usage

COMPLETIONS = Endpoint(
    id_prefix="cmpl",
    object="text_completion",
    chunk_object="text_completion",
    prompt_field="prompt",
    default_max_tokens=16,  # OpenAI's
    continues_text=True,
)


async def prepare_completion(gateway: GatewayService, body: CompletionRequest, caller: Caller, arrival: float) -> Job:
    """Raises ApiError if the request cannot be served."""
    prompts = [partial(_token_ids, prompt, index) for index, prompt in enumerate(body.prompts)]
    return await new_job(gateway, COMPLETIONS, body, prompts, caller, arrival)


async def answer_completion(job: Job) -> Response:
    """Raises ApiError before the first byte; afterwards a stream ends with an error event."""
    if job.stream:
        return await stream(_events(job))
    parts: list[list[str]] = [[] for _ in job.generations]
    async with aclosing(merge(job.generations)) as deltas:
        async for delta in deltas:
            parts[delta.index].append(delta.text)
    choices = [
        _choice(index, "".join(texts), job.generations[index].text.finish_reason) for index, texts in enumerate(parts)
    ]
    return JSONResponse(job.frame | {"choices": choices, "usage": await usage(job.generations)})


def _token_ids(prompt: str | list[Any], index: int, model: ModelService) -> list[int]:
    """Raises ValueError."""
    if isinstance(prompt, list):
        if len(prompt) < model.info.max_model_len:  # a longer one is refused for its length
            _check_token_ids(prompt, model.info.vocab_size)
        return prompt
    tokenizer = model.tokenizer
    token_ids = tokenizer.encode(prompt, add_bos=tokenizer.add_bos, parse_special=True, limit=model.info.max_model_len)
    if not token_ids:
        raise ValueError(f"prompt {index} is empty, but must have at least one token")
    return token_ids


def _check_token_ids(token_ids: list[Any], vocab_size: int) -> None:
    """Raises ValueError naming the first entry that is no token id of the model."""
    for index, entry in enumerate(token_ids):
        if type(entry) is int and 0 <= entry < vocab_size:
            continue
        found = str(entry)[:40] if isinstance(entry, (int, float)) else f"no number ({type(entry).__name__})"
        raise ValueError(f"prompt entry {index} is {found}, but token ids are whole numbers from 0 to {vocab_size - 1}")


async def _events(job: Job) -> AsyncGenerator[bytes]:
    def chunk(index: int, text: str, finish_reason: str | None) -> bytes:
        return event(job.chunk_frame | {"choices": [_choice(index, text, finish_reason)]})

    chunks = [chunk(index, "", None).split(b'""', 1) for index in range(len(job.generations))]
    async with aclosing(merge(job.generations)) as deltas:
        async for delta in deltas:
            if delta.finish_reason is None:
                head, tail = chunks[delta.index]
                yield head + quote(delta.text) + tail
            else:
                yield chunk(delta.index, delta.text, delta.finish_reason)
    if job.include_usage:
        yield event(job.chunk_frame | {"choices": [], "usage": await usage(job.generations)})
    yield DONE


def _choice(index: int, text: str, finish_reason: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason}
