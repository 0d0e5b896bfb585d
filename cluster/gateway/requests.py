"""From a checked request body and a prompt's tokens to a generation."""

from __future__ import annotations

import secrets
import time

from cluster.gateway.errors import bad_request, context_length_exceeded
from cluster.gateway.generation import Generation
from cluster.gateway.protocol import SamplingFields
from cluster.gateway.service import GatewayService, ModelService
from cluster.gateway.text_stream import TextStream
from replicas.kv.prefix import chain_keys, root_key
from replicas.messages import GenerateRequest
from replicas.sampling.params import MAX_SEED, SamplingParams


def new_generation(
    gateway: GatewayService,
    model: ModelService,
    body: SamplingFields,
    request_id: str,
    token_ids: list[int],
    asked: int | None,
    default: int | None,
    index: int,
    param: str,
    arrival: float,
) -> Generation:
    """`asked` is the caller's limit of output tokens, `default` the endpoint's (None: as many as fit); `param` names
    the field that holds the prompt. Raises ApiError."""
    limit, prompt = model.info.max_model_len, len(token_ids)
    if prompt >= limit or prompt + (asked or 0) > limit:
        raise context_length_exceeded(limit, prompt, asked, param)
    max_tokens = asked if asked is not None else min(default or limit, limit - prompt)
    salt = body.cache_salt or ""
    request = GenerateRequest(
        request_id=request_id,
        token_ids=tuple(token_ids),
        sampling=sampling_params(body, max_tokens, model.info.vocab_size),
        block_keys=tuple(chain_keys(root_key(model.info.model_name, model.info.block_size, salt), token_ids, model.info.block_size)),
        cache_salt=salt,
    )
    text = TextStream(
        model.tokenizer,
        body.stops,
        body.include_stop_str_in_output,
        request.sampling.min_tokens,
        continues_text=param == "prompt",
    )
    return Generation(gateway, model, request, text, index, arrival)


def sampling_params(body: SamplingFields, max_tokens: int, vocab_size: int) -> SamplingParams:
    """The caller's wishes, with OpenAI's defaults; randomness is drawn here and nowhere below. Raises ApiError."""
    for index, token_id in enumerate(body.stop_token_ids or ()):
        if not 0 <= token_id < vocab_size:
            raise bad_request(
                f"stop_token_ids has {token_id}, but token ids lie between 0 and {vocab_size - 1}.",
                f"stop_token_ids.{index}",
            )
    top_k = 0 if body.top_k in (None, -1) else body.top_k
    seed = secrets.randbelow(MAX_SEED) if body.seed is None else body.seed % (MAX_SEED + 1)
    try:
        return SamplingParams(
            max_tokens=max_tokens,
            min_tokens=body.min_tokens or 0,
            temperature=1.0 if body.temperature is None else body.temperature,
            top_k=top_k or 0,
            top_p=1.0 if body.top_p is None else body.top_p,
            min_p=body.min_p or 0.0,
            seed=seed,
            stop_token_ids=tuple(body.stop_token_ids or ()),
            ignore_eos=body.ignore_eos,
        )
    except ValueError as error:
        raise bad_request(f"{error}.", str(error).split()[0]) from None


def check_token_ids(token_ids: list[int], vocab_size: int, param: str) -> None:
    """Raises ApiError 400 naming the first id that the model does not have."""
    if min(token_ids) >= 0 and max(token_ids) < vocab_size:
        return
    wrong = next(token_id for token_id in token_ids if not 0 <= token_id < vocab_size)
    raise bad_request(f"{param} has the token id {str(wrong)[:40]}, but ids lie between 0 and {vocab_size - 1}.", param)


def new_id(prefix: str) -> str:
    return f"{prefix}-{secrets.token_hex(12)}"


def now_seconds() -> int:
    return int(time.time())
