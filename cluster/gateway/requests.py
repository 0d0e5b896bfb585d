"""From a checked request body to a job: what the engine is asked for each prompt, and how its tokens become text."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from cluster.gateway.caller import Caller
from cluster.gateway.errors import bad_request, context_length_exceeded
from cluster.gateway.gate import Ticket
from cluster.gateway.generation import Generation
from cluster.gateway.protocol import SamplingFields
from cluster.gateway.service import GatewayService, ModelService
from cluster.gateway.text_stream import TextStream
from replicas.kv.prefix import chain_keys, root_key
from replicas.messages import GenerateRequest
from replicas.sampling.params import MAX_SEED, ParameterError, SamplingParams
from replicas.text.stops import StopStrings
from replicas.text.tokenizer import TooManyTokens

OPEN_ANSWER_TOKENS = 512  # reserved for an answer whose length the caller leaves open

TIERS = {"priority": -1, "auto": 0, "default": 0, "flex": 1}  # the priority that each means

ReadPrompt = Callable[[ModelService], list[int]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What all requests to one path have in common. `default_max_tokens` None: as many as fit. `continues_text`: the
    answer goes on in the prompt's own text."""

    id_prefix: str
    object: str
    chunk_object: str
    prompt_field: str
    default_max_tokens: int | None
    continues_text: bool


@dataclass(frozen=True, slots=True)
class Job:
    """One request that has passed every check, with a generation for each prompt. All objects of the answer begin
    with `frame`, those of a stream with `chunk_frame`. It may use about `reserved_tokens` of its caller's."""

    generations: list[Generation]
    frame: dict[str, Any]
    chunk_frame: dict[str, Any]
    stream: bool
    include_usage: bool
    reserved_tokens: int


async def new_job(
    gateway: GatewayService,
    endpoint: Endpoint,
    body: SamplingFields,
    prompts: Iterable[ReadPrompt],
    caller: Caller,
    arrival: float,
) -> Job:
    """Each of `prompts` gives its tokens when called, which is done where it delays nobody. Raises ApiError."""
    model, job_id = gateway.model(body.model), f"{endpoint.id_prefix}-{secrets.token_hex(12)}"
    stops = StopStrings(body.stops, body.include_stop_str_in_output) if body.stops else None
    generations, reserved_tokens = [], 0
    for index, read in enumerate(prompts):
        request = await gateway.off_loop(partial(_request, model, endpoint, body, caller, f"{job_id}-{index}", read))
        text = TextStream(model.tokenizer, stops, request.sampling.min_tokens, endpoint.continues_text)
        num_tokens, most = len(request.token_ids), request.sampling.max_tokens
        ticket = Ticket(caller.name, request.priority, num_tokens, most, arrival, body.service_tier == "flex")
        generations.append(Generation(gateway, model, request, text, index, caller, ticket))
        reserved_tokens += num_tokens + (most if body.output_limit else min(most, OPEN_ANSWER_TOKENS))
    frame = {"id": job_id, "object": endpoint.object, "created": int(time.time()), "model": model.id}
    if body.service_tier is not None:
        frame["service_tier"] = "default" if body.service_tier == "auto" else body.service_tier
    chunk_frame = frame | {"object": endpoint.chunk_object}
    if body.include_usage:
        chunk_frame["usage"] = None
    return Job(generations, frame, chunk_frame, bool(body.stream), body.include_usage, reserved_tokens)


def _request(
    model: ModelService, endpoint: Endpoint, body: SamplingFields, caller: Caller, request_id: str, read: ReadPrompt
) -> GenerateRequest:
    """Raises ApiError."""
    limit, asked, field = model.info.max_model_len, body.output_limit, endpoint.prompt_field
    try:
        token_ids = read(model)
    except TooManyTokens as error:
        raise context_length_exceeded(limit, f"at least {error.at_least}", asked, field) from None
    except ValueError as error:
        raise bad_request(f"{str(error).rstrip('.')}.", field) from None
    if len(token_ids) >= limit or len(token_ids) + (asked or 0) > limit:
        raise context_length_exceeded(limit, str(len(token_ids)), asked, field)
    if asked is None:
        asked = min(endpoint.default_max_tokens or limit, limit - len(token_ids))
    salt, block_size = body.cache_salt or "", model.info.block_size
    root = root_key(model.info.model_name, block_size, salt)
    return GenerateRequest(
        request_id=request_id,
        token_ids=tuple(token_ids),
        sampling=_sampling_params(body, asked, model.info.vocab_size),
        block_keys=tuple(chain_keys(root, token_ids, block_size)),
        priority=caller.priority(TIERS[body.service_tier or "auto"] if body.priority is None else body.priority),
        cache_salt=salt,
    )


def _sampling_params(body: SamplingFields, max_tokens: int, vocab_size: int) -> SamplingParams:
    """The caller's wishes, with OpenAI's defaults; randomness is drawn here and nowhere below. Raises ApiError."""
    for index, token_id in enumerate(body.stop_token_ids or ()):
        if not 0 <= token_id < vocab_size:
            raise bad_request(
                f"stop_token_ids has {token_id}, but token ids lie between 0 and {vocab_size - 1}.",
                f"stop_token_ids.{index}",
            )
    try:
        return SamplingParams(
            max_tokens=max_tokens,
            min_tokens=body.min_tokens or 0,
            temperature=1.0 if body.temperature is None else body.temperature,
            top_k=0 if body.top_k in (None, -1) else body.top_k,
            top_p=1.0 if body.top_p is None else body.top_p,
            min_p=body.min_p or 0.0,
            seed=secrets.randbelow(MAX_SEED) if body.seed is None else body.seed % (MAX_SEED + 1),
            stop_token_ids=tuple(body.stop_token_ids or ()),
            ignore_eos=body.ignore_eos,
        )
    except ParameterError as error:
        field = body.output_limit_field if error.field == "max_tokens" else error.field
        raise bad_request(f"{field} is {error.value}, but must be {error.allowed}.", field) from None
