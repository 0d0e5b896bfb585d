"""From a checked request body to a job: what the engine is asked for each prompt and choice, and how the tokens become
text."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

from cluster.gateway.caller import Caller
from cluster.gateway.constraint import constraint
from cluster.gateway.errors import bad_request, context_length_exceeded
from cluster.gateway.gate import Ticket
from cluster.gateway.generation import Generation
from cluster.gateway.protocol import SamplingFields
from cluster.gateway.sampling import sampling_params
from cluster.gateway.service import GatewayService, ModelService
from cluster.gateway.text_stream import TextRules, TextStream
from replicas.kv.prefix import chain_keys, root_key
from replicas.messages import GenerateRequest
from replicas.sampling.grammar_spec import Grammar
from replicas.text.parts import ContentParser, MessageParser
from replicas.text.stop_scope import StopScope
from replicas.text.stops import StopStrings
from replicas.text.tokenizer import TooManyTokens

OPEN_ANSWER_TOKENS = 512  # reserved for an answer whose length the caller leaves open

AS_MANY_AS_FIT = -1

TIERS = {"priority": -1, "auto": 0, "default": 0, "flex": 1}  # the priority that each means

Body = TypeVar("Body", bound=SamplingFields)
ReadPrompt = Callable[[ModelService, int | None], list[int]]
"""Gives a prompt's tokens. A text that must have more tokens than the limit may raise TooManyTokens."""


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
class Steering:
    """What an endpoint adds to the fields of a request: a constraint in place of the body's, the place in the answer
    where any constraint holds, and how it reads the answer. `kept_special` are special tokens that `new_parser` has to
    see; stop strings count in the scope that `stop_scope` gives."""

    grammar: Grammar | None = None
    place: Callable[[Grammar], Grammar] | None = None
    new_parser: Callable[[], MessageParser] = ContentParser
    kept_special: frozenset[int] = frozenset()
    continues_text: bool = False
    stop_scope: Callable[[], StopScope] | None = None


@dataclass(frozen=True, slots=True)
class Job(Generic[Body]):
    """One request that has passed every check. The choices of prompt i are the generations from
    i * `body.num_generations` on. All objects of the answer begin with `frame`, those of a stream with `chunk_frame`.
    It may use about `reserved_tokens` of its caller's."""

    body: Body
    steering: Steering
    model: ModelService
    generations: list[Generation]
    frame: dict[str, Any]
    chunk_frame: dict[str, Any]
    reserved_tokens: int


async def new_job(
    gateway: GatewayService,
    endpoint: Endpoint,
    body: Body,
    prompts: Iterable[ReadPrompt],
    caller: Caller,
    arrival: float,
    steering: Steering = Steering(),
) -> Job[Body]:
    """Each of `prompts` gives its tokens when called, which is done where it delays nobody. Raises ApiError."""
    model, job_id = gateway.model(body.model), secrets.token_hex(12)
    rules = _text_rules(body, endpoint, steering)
    generations: list[Generation] = []
    for read in prompts:
        leader = None
        for request in await gateway.off_loop(partial(_requests, model, endpoint, body, caller, read, steering)):
            index, text = len(generations), TextStream(model.tokenizer, rules)
            named = replace(request, request_id=f"{job_id}-{index}")
            ticket = _ticket(body, caller, request, arrival, is_leader=leader is None)
            generations.append(Generation(gateway, model, named, text, index, caller, ticket, leader))
            leader = leader or generations[-1]
    frame = _frame(endpoint, body, model, job_id)
    chunk_frame = frame | {"object": endpoint.chunk_object} | ({"usage": None} if body.include_usage else {})
    reserved = sum(_reserved(body, generation) for generation in generations)
    return Job(body, steering, model, generations, frame, chunk_frame, reserved)


def _frame(endpoint: Endpoint, body: SamplingFields, model: ModelService, job_id: str) -> dict[str, Any]:
    frame = {
        "id": f"{endpoint.id_prefix}-{body.request_id or job_id}",
        "object": endpoint.object,
        "created": int(time.time()),
        "model": model.id,
    }
    if body.service_tier is not None:
        frame["service_tier"] = "default" if body.service_tier == "auto" else body.service_tier
    return frame


def _text_rules(body: SamplingFields, endpoint: Endpoint, steering: Steering) -> TextRules:
    return TextRules(
        stops=StopStrings(body.stops, body.include_stop_str_in_output) if body.stops else None,
        min_tokens=body.min_tokens or 0,
        continues_text=endpoint.continues_text or steering.continues_text,
        skip_special=body.skip_special_tokens,
        kept_special=steering.kept_special,
        stop_scope=steering.stop_scope,
        discards=body.wants_no_answer,
    )


def _ticket(
    body: SamplingFields, caller: Caller, request: GenerateRequest, arrival: float, *, is_leader: bool
) -> Ticket:
    """Choices after the first have no prompt to compute, and no deadline that the first could make them miss."""
    return Ticket(
        key=caller.name,
        priority=request.priority,
        num_tokens=len(request.token_ids) if is_leader else 0,
        max_tokens=request.sampling.max_tokens,
        arrival=arrival,
        patient=body.service_tier == "flex" or not is_leader,
    )


def _reserved(body: SamplingFields, generation: Generation) -> int:
    most = generation.request.sampling.max_tokens
    return generation.charged_prompt + (most if body.output_limit else min(most, OPEN_ANSWER_TOKENS))


def _requests(
    model: ModelService,
    endpoint: Endpoint,
    body: SamplingFields,
    caller: Caller,
    read: ReadPrompt,
    steering: Steering,
) -> list[GenerateRequest]:
    """What is asked of the engine for each choice of a prompt, yet without a name. Raises ApiError."""
    token_ids, max_tokens = _prompt_and_limit(model, endpoint, body, read)
    grammar = steering.grammar or constraint(body)
    if grammar is not None and steering.place is not None:
        grammar = steering.place(grammar)
    salt, block_size = body.cache_salt or "", model.info.block_size
    root = root_key(model.info.model_name, block_size, salt)
    request = GenerateRequest(
        request_id="",
        token_ids=tuple(token_ids),
        sampling=sampling_params(body, model, max_tokens, grammar),
        block_keys=tuple(chain_keys(root, token_ids, block_size)),
        priority=caller.priority(TIERS[body.service_tier or "auto"] if body.priority is None else body.priority),
        cache_salt=salt,
    )
    choices = (replace(request.sampling, choice=choice) for choice in range(body.num_generations))
    return [replace(request, sampling=sampling) for sampling in choices]


def _prompt_and_limit(
    model: ModelService, endpoint: Endpoint, body: SamplingFields, read: ReadPrompt
) -> tuple[list[int], int]:
    """The prompt's tokens, of which at most `truncate_prompt_tokens` are kept, the last ones; and the most tokens that
    the answer may have. Raises ApiError."""
    limit, asked, field = model.info.max_model_len, body.output_limit, endpoint.prompt_field
    kept = body.truncate_prompt_tokens
    try:
        token_ids = read(model, limit if kept is None else None)
    except TooManyTokens as error:
        raise context_length_exceeded(limit, f"at least {error.at_least}", asked, field) from None
    except ValueError as error:
        raise bad_request(f"{str(error).rstrip('.')}.", field) from None
    if kept is not None:
        token_ids = token_ids[-(limit - max(1, asked or 0) if kept == AS_MANY_AS_FIT else kept) :]
    if len(token_ids) >= limit or len(token_ids) + (asked or 0) > limit:
        raise context_length_exceeded(limit, str(len(token_ids)), asked, field)
    if asked is None:
        asked = min(endpoint.default_max_tokens or limit, limit - len(token_ids))
    return token_ids, 1 if body.wants_no_answer else asked
