"""POST /v1/completions: bare prompts, as text or token ids, one choice for each.

A text is tokenized with the special tokens that it spells, since it is the caller's whole prompt, and gets the
model's BOS token if it has none and the model wants one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.responses import JSONResponse, Response

from cluster.gateway.errors import bad_request
from cluster.gateway.generation import Generation, merge
from cluster.gateway.protocol import CompletionRequest
from cluster.gateway.requests import check_token_ids, new_generation, new_id, now_seconds
from cluster.gateway.service import GatewayService, ModelService
from cluster.gateway.sse import DONE, event, quote, stream
from cluster.gateway.usage import usage

DEFAULT_MAX_TOKENS = 16  # OpenAI's


async def completion(gateway: GatewayService, body: CompletionRequest, arrival: float) -> Response:
    """Raises ApiError before the first byte; afterwards a stream ends with an error event."""
    model = gateway.model(body.model)
    prompts = [await _token_ids(gateway, model, prompt, index) for index, prompt in enumerate(body.prompts)]
    request_id = new_id("cmpl")
    generations = [
        new_generation(
            gateway,
            model,
            body,
            f"{request_id}-{index}",
            token_ids,
            body.max_tokens,
            DEFAULT_MAX_TOKENS,
            index,
            "prompt",
            arrival,
        )
        for index, token_ids in enumerate(prompts)
    ]
    frame = {"id": request_id, "object": "text_completion", "created": now_seconds(), "model": model.id}
    if body.stream:
        return await stream(_events(generations, frame, body.include_usage))
    parts: list[list[str]] = [[] for _ in generations]
    async with aclosing(merge(generations)) as deltas:
        async for delta in deltas:
            parts[delta.index].append(delta.text)
    choices = [
        _choice(index, "".join(texts), generations[index].text.finish_reason) for index, texts in enumerate(parts)
    ]
    return JSONResponse(frame | {"choices": choices, "usage": await usage(generations)})


async def _token_ids(gateway: GatewayService, model: ModelService, prompt: str | list[int], index: int) -> list[int]:
    if isinstance(prompt, list):
        check_token_ids(prompt, model.info.vocab_size, "prompt")
        return prompt
    tokenizer = model.tokenizer
    token_ids = await gateway.off_loop(lambda: tokenizer.encode(prompt, add_bos=tokenizer.add_bos, parse_special=True))
    if not token_ids:
        raise bad_request(f"prompt {index} is empty, but must have at least one token.", "prompt")
    return token_ids


async def _events(generations: list[Generation], frame: dict[str, Any], include_usage: bool) -> AsyncGenerator[bytes]:
    chunks = [
        event(frame | {"choices": [_choice(index, "", None)]}).split(b'""', 1) for index in range(len(generations))
    ]
    async with aclosing(merge(generations)) as deltas:
        async for delta in deltas:
            if delta.finish_reason is None:
                head, tail = chunks[delta.index]
                yield head + quote(delta.text) + tail
            else:
                yield event(frame | {"choices": [_choice(delta.index, delta.text, delta.finish_reason)]})
    if include_usage:
        yield event(frame | {"choices": [], "usage": await usage(generations)})
    yield DONE


def _choice(index: int, text: str, finish_reason: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason}
