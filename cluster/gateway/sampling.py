"""From the fields of a request to what the sampler is told: OpenAI's defaults, and token ids checked with the model at
hand. Randomness is drawn here and nowhere below."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping

from cluster.gateway.errors import ApiError, bad_request
from cluster.gateway.protocol import SamplingFields
from cluster.gateway.service import ModelService
from replicas.sampling.grammar_spec import Grammar
from replicas.sampling.params import MAX_SEED, ParameterError, SamplingParams
from replicas.text.tokenizer import Tokenizer


def sampling_params(
    body: SamplingFields, model: ModelService, max_tokens: int, grammar: Grammar | None
) -> SamplingParams:
    """Raises ApiError by the name of the field."""
    vocab_size = model.info.vocab_size
    if body.allowed_token_ids == []:
        raise bad_request("allowed_token_ids is empty, so that no token could be drawn.", "allowed_token_ids")
    _check_ids("stop_token_ids", body.stop_token_ids or (), vocab_size)
    _check_ids("allowed_token_ids", body.allowed_token_ids or (), vocab_size)
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
            presence_penalty=body.presence_penalty,
            frequency_penalty=body.frequency_penalty,
            repetition_penalty=body.repetition_penalty,
            logit_bias=_biases(body.logit_bias or {}, vocab_size),
            allowed_token_ids=tuple(dict.fromkeys(body.allowed_token_ids or ())),
            bad_words=_bad_words(body.bad_words or (), model.tokenizer),
            logprobs=body.engine_logprobs,
            prompt_logprobs=body.engine_prompt_logprobs,
            grammar=grammar,
        )
    except ParameterError as error:
        raise _explain(error, body) from None


def _explain(error: ParameterError, body: SamplingFields) -> ApiError:
    field = body.output_limit_field if error.field == "max_tokens" else error.field
    return bad_request(f"{field} is {error.value}, but must be {error.allowed}.", field)


def _check_ids(field: str, token_ids: Iterable[int], vocab_size: int) -> None:
    for index, token_id in enumerate(token_ids):
        if not 0 <= token_id < vocab_size:
            raise bad_request(_out_of_range(field, token_id, vocab_size), f"{field}.{index}")


def _out_of_range(field: str, token_id: object, vocab_size: int) -> str:
    return f"{field} has {str(token_id)[:40]}, but token ids lie between 0 and {vocab_size - 1}."


def _biases(biases: Mapping[str, float], vocab_size: int) -> tuple[tuple[int, float], ...]:
    """JSON has only strings for keys, so OpenAI's token ids are strings."""
    read: dict[int, float] = {}
    for key, bias in biases.items():
        if not (key.isascii() and key.isdigit() and len(key) < 10 and int(key) < vocab_size):
            raise bad_request(_out_of_range("logit_bias", key, vocab_size), "logit_bias")
        if int(key) in read:
            raise bad_request(f"logit_bias has the token {int(key)} twice.", "logit_bias")
        read[int(key)] = bias
    return tuple(read.items())


def _bad_words(words: Iterable[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Each word as it is tokenized at the beginning of a text and behind a space."""
    spellings = (spelling for word in words for spelling in (word, f" {word}"))
    sequences = [tokenizer.encode(spelling, add_bos=False, parse_special=True) for spelling in spellings]
    return tuple(dict.fromkeys(tuple(sequence) for sequence in sequences if sequence))
