"""Log probabilities as plain numbers, as many as the rows of a step have asked for: so the other stage knows how many
will come. Float64 holds token ids and float32 numbers exactly."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from replicas.messages import TokenLogprobs
from replicas.plan import StepResults

NO_ID = -1.0


@dataclass(frozen=True, slots=True)
class Asked:
    """What work row `row` is owed by one step: the log probabilities of `num_prompt` tokens of the prompt, each with
    those of the `prompt_top` likeliest, and those of its new token, if `top` is not None, with the `top` likeliest."""

    row: int
    num_prompt: int
    prompt_top: int
    top: int | None


def num_numbers(asked: Sequence[Asked]) -> int:
    return sum(one.num_prompt * (1 + 2 * one.prompt_top) + (0 if one.top is None else 1 + 2 * one.top) for one in asked)


def flattened(results: StepResults, asked: Sequence[Asked]) -> list[float]:
    """Where the vocabulary is too small for as many of the likeliest tokens, it is filled up."""
    numbers: list[float] = []
    for one in asked:
        entries = [(entry, one.prompt_top) for entry in results.prompt_logprobs.get(one.row, ())]
        if one.top is not None:
            entries.append((results.logprobs[one.row], one.top))
        for entry, top in entries:
            numbers.append(entry.logprob)
            for pair in entry.top:
                numbers += pair
            numbers += (NO_ID, -math.inf) * (top - len(entry.top))
    return numbers


def unflattened(token_ids: list[int | None], asked: Sequence[Asked], numbers: Sequence[float]) -> StepResults:
    rest = iter(numbers)
    results = StepResults(token_ids, logprobs := {}, prompt_logprobs := {})
    for one in asked:
        if one.num_prompt:
            prompt_logprobs[one.row] = [_entry(rest, one.prompt_top) for _ in range(one.num_prompt)]
        if one.top is not None:
            logprobs[one.row] = _entry(rest, one.top)
    return results


def _entry(numbers: Iterator[float], top: int) -> TokenLogprobs:
    logprob = next(numbers)
    flat = islice(numbers, 2 * top)
    pairs = ((int(token_id), value) for token_id, value in zip(flat, flat, strict=True) if token_id != NO_ID)
    return TokenLogprobs(logprob, tuple(pairs))
