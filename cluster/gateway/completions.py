"""POST /v1/completions: bare prompts, as text or token ids.

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
from cluster.gateway.completion_answer import CompletionAnswer, Lists, joined
from cluster.gateway.generation import Generation, merge
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


CompletionJob = Job[CompletionRequest]


async def prepare_completion(
    gateway: GatewayService, body: CompletionRequest, caller: Caller, arrival: float
) -> CompletionJob:
    """Raises ApiError if the request cannot be served."""
    prompts = [partial(_token_ids, prompt, index, body.add_special_tokens) for index, prompt in enumerate(body.prompts)]
    return await new_job(gateway, COMPLETIONS, body, prompts, caller, arrival)


async def answer_completion(job: CompletionJob) -> Response:
    """Raises ApiError before the first byte; afterwards a stream ends with an error event."""
    if job.body.stream:
        return await stream(_events(job))
    answers = [CompletionAnswer(job, generation) for generation in job.generations]
    parts: list[list[tuple[str, Lists | None]]] = [[] for _ in answers]
    async with aclosing(merge(job.generations)) as deltas:
        async for delta in deltas:
            parts[delta.index].append(answers[delta.index].take(delta))
    choices = [
        _whole(index, answers[place], parts[place], job.generations[place]) for index, place in enumerate(_best(job))
    ]
    return JSONResponse(job.frame | {"choices": choices, "usage": await usage(job.generations)})


def _whole(
    index: int, answer: CompletionAnswer, parts: list[tuple[str, Lists | None]], generation: Generation
) -> dict[str, Any]:
    portions = [lists for _, lists in parts if lists is not None]
    text, logprobs = "".join(text for text, _ in parts), joined(portions) if portions else None
    choice = _choice(index, text, logprobs, generation.text.finish_reason)
    if (of_prompt := answer.prompt_logprobs()) is not None:
        choice["prompt_logprobs"] = of_prompt
    return choice


def _best(job: CompletionJob) -> list[int]:
    """The generations that are shown: of each prompt the first `n`, or the likeliest if more were computed."""
    body, generations = job.body, job.generations
    shown = []
    for first in range(0, len(generations), body.num_generations):
        places = list(range(first, first + body.num_generations))
        if body.num_generations > body.n:
            places.sort(key=lambda place: -generations[place].mean_logprob)
        shown += places[: body.n]
    return shown


def _token_ids(
    prompt: str | list[Any], index: int, adds_bos: bool, model: ModelService, limit: int | None
) -> list[int]:
    """Raises ValueError."""
    if isinstance(prompt, list):
        if limit is None or len(prompt) < limit:  # a longer one is refused for its length
            _check_token_ids(prompt, model.info.vocab_size)
        return prompt
    tokenizer = model.tokenizer
    token_ids = tokenizer.encode(prompt, add_bos=adds_bos and tokenizer.add_bos, parse_special=True, limit=limit)
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


async def _events(job: CompletionJob) -> AsyncGenerator[bytes]:
    def chunk(index: int, text: str, logprobs: Lists | None, finish_reason: str | None) -> bytes:
        return event(job.chunk_frame | {"choices": [_choice(index, text, logprobs, finish_reason)]})

    answers = [CompletionAnswer(job, generation) for generation in job.generations]
    chunks = [chunk(index, "", None, None).split(b'""', 1) for index in range(len(answers))]
    async with aclosing(merge(job.generations)) as deltas:
        async for delta in deltas:
            text, logprobs = answers[delta.index].take(delta)
            if delta.finish_reason is None and logprobs is None:
                head, tail = chunks[delta.index]
                yield head + quote(text) + tail
            else:
                yield chunk(delta.index, text, logprobs, delta.finish_reason)
    if job.body.include_usage:
        yield event(job.chunk_frame | {"choices": [], "usage": await usage(job.generations)})
    yield DONE


def _choice(index: int, text: str, logprobs: Lists | None, finish_reason: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
