"""Each processor changes logits as transformers' processor of that name does, step by step along growing sequences, and
changes those of no other row."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation import (
    LogitsProcessor,
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from replicas.sampling.params import SamplingParams
from replicas.sampling.processors import process_logits
from replicas.sampling.rows import SampleRow
from replicas.sampling.sampler import sample
from replicas.sampling.state import SamplingState

VOCAB, PROMPT, STEPS = 13, 5, 12
EOS = (12,)


class OutputPenalties(LogitsProcessor):  # type: ignore[misc]
    """Frequency and presence penalties by OpenAI's formula, which transformers does not have."""

    def __init__(self, frequency: float, presence: float) -> None:
        self.frequency, self.presence = frequency, presence

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        counts = torch.bincount(input_ids[0, PROMPT:], minlength=VOCAB).float()
        return scores - self.frequency * counts - self.presence * (counts > 0)


def reference(params: SamplingParams) -> LogitsProcessorList:
    """In the order in which transformers' `generate` has them."""
    processors = LogitsProcessorList()
    if params.logit_bias:
        processors.append(SequenceBiasLogitsProcessor({(token_id,): bias for token_id, bias in params.logit_bias}))
    processors.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    processors.append(OutputPenalties(params.frequency_penalty, params.presence_penalty))
    if params.bad_words:
        processors.append(NoBadWordsLogitsProcessor([list(word) for word in params.bad_words]))
    if params.min_tokens:
        ends = [*params.stop_token_ids, *(() if params.ignore_eos else EOS)]
        processors.append(MinNewTokensLengthLogitsProcessor(PROMPT, params.min_tokens, torch.tensor(ends)))
    if params.allowed_token_ids:
        allowed = list(params.allowed_token_ids)
        processors.append(PrefixConstrainedLogitsProcessor(lambda batch, ids: allowed, 1))
    return processors


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "repetition": {"repetition_penalty": 1.7},
    "reward for repetition": {"repetition_penalty": 0.6},
    "frequency": {"frequency_penalty": 0.8},
    "presence": {"presence_penalty": -1.3},
    "all penalties": {"repetition_penalty": 1.2, "frequency_penalty": -0.5, "presence_penalty": 0.9},
    "bias": {"logit_bias": ((3, 5.0), (7, -100.0), (0, -0.5))},
    "bias before penalties": {"logit_bias": ((3, 5.0), (4, -7.0)), "repetition_penalty": 1.5, "presence_penalty": 1.0},
    "bad words": {"bad_words": ((5,), (1, 2), (3, 3, 3), (2, 1, 0, 4), (1, 6))},
    "allowed": {"allowed_token_ids": (1, 2, 3, 8)},
    "allowed and bad": {"allowed_token_ids": (1, 2, 3), "bad_words": ((1, 2), (2, 3), (3,))},
    "min tokens": {"min_tokens": 6, "stop_token_ids": (1, 4)},
    "min tokens without the end": {"min_tokens": 6, "stop_token_ids": (1,), "ignore_eos": True},
    "everything": {
        "repetition_penalty": 1.4,
        "frequency_penalty": 0.3,
        "presence_penalty": 0.2,
        "logit_bias": ((2, 3.0), (9, -4.0)),
        "bad_words": ((2,), (4, 5)),
        "min_tokens": 4,
        "allowed_token_ids": tuple(range(2, 13)),
    },
}


def sequence(seed: int, low: int = 0, high: int = 6) -> list[int]:
    """Few tokens, so that they repeat and complete words."""
    draws = random.Random(seed)
    return [draws.randrange(low, high) for _ in range(PROMPT + STEPS)]


def logits(seed: int, rows: int = 1) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def case_params(name: str) -> SamplingParams:
    return SamplingParams(max_tokens=STEPS, **CASES[name])


def states(names: list[str], sequences: list[list[int]], start: int = PROMPT) -> list[SamplingState]:
    return [
        SamplingState(case_params(name), token_ids[:start], PROMPT, EOS)
        for name, token_ids in zip(names, sequences, strict=True)
    ]


@pytest.mark.parametrize("name", CASES)
def test_it_equals_transformers_at_every_step(name):
    params, token_ids = case_params(name), sequence(1)
    (state,) = states([name], [token_ids])
    for length in range(PROMPT, PROMPT + STEPS):
        ours = logits(length)
        expected = reference(params)(torch.tensor([token_ids[:length]]), ours.clone())
        process_logits(ours, [state.next_row(token_ids[:length])])
        assert torch.equal(ours, expected), length


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(list(CASES)), min_size=1, max_size=8), st.integers(0, 10**6))
def test_rows_of_one_batch_do_not_touch_each_other(names, seed):
    """With sequences that enter with some output, as after a preemption."""
    sequences = [sequence(seed + index) for index in range(len(names))]
    starts = [PROMPT + (seed + index) % STEPS for index in range(len(names))]
    entered = [
        states([name], [token_ids], start)[0] for name, token_ids, start in zip(names, sequences, starts, strict=True)
    ]
    logits_RV = logits(seed, len(names))
    rows = [state.next_row(ids[:start]) for state, ids, start in zip(entered, sequences, starts, strict=True)]
    expected = [
        reference(case_params(name))(torch.tensor([ids[:start]]), logits_RV[index : index + 1].clone())
        for index, (name, ids, start) in enumerate(zip(names, sequences, starts, strict=True))
    ]
    process_logits(logits_RV, rows)
    assert torch.equal(logits_RV, torch.cat(expected))


@pytest.mark.parametrize("name", ["all penalties", "everything", "bad words"])
@pytest.mark.parametrize("start", [PROMPT, PROMPT + 1, PROMPT + STEPS - 1])
def test_a_state_made_anew_goes_on_as_the_old_one(name, start):
    token_ids = sequence(2)
    (old,) = states([name], [token_ids])
    for length in range(PROMPT, start):
        old.next_row(token_ids[:length])
    (new,) = states([name], [token_ids], start)
    ours, theirs = logits(9), logits(9)
    process_logits(ours, [old.next_row(token_ids[:start])])
    process_logits(theirs, [new.next_row(token_ids[:start])])
    assert torch.equal(ours, theirs)


def test_many_distinct_tokens_are_all_counted():
    """More than the room that is made at first, in prompt and output."""
    vocab, num_prompt = 1000, 300
    token_ids = [*range(num_prompt), *range(200, 900), *range(400, 500)]
    params = SamplingParams(max_tokens=900, repetition_penalty=2.0, frequency_penalty=0.25)
    state = SamplingState(params, token_ids[: num_prompt + 1], num_prompt, ())
    for length in range(num_prompt + 1, len(token_ids) + 1, 37):
        row = state.next_row(token_ids[:length])
    row = state.next_row(token_ids)
    x = torch.ones(1, vocab)
    process_logits(x, [row])
    counts = torch.bincount(torch.tensor(token_ids[num_prompt:]), minlength=vocab)
    seen = torch.bincount(torch.tensor(token_ids), minlength=vocab) > 0
    assert torch.equal(x[0], torch.where(seen, 0.5, 1.0) - 0.25 * counts)


class TestMasks:
    def row(self, **parts: Any) -> SampleRow:
        return SampleRow(SamplingParams(temperature=0.0), 0, **parts)

    def test_a_bitmask_confines_to_its_bits(self):
        vocab, allowed = 70, [0, 31, 32, 63, 69]
        words = [sum(1 << bit % 32 for bit in allowed if bit // 32 == word) for word in range(3)]
        signed = [word - (1 << 32) if word >> 31 else word for word in words]
        x = torch.zeros(2, vocab)
        process_logits(x, [self.row(), self.row(bitmask=torch.tensor(signed, dtype=torch.int32))])
        assert x[0].isfinite().all()
        assert x[1].isfinite().nonzero().flatten().tolist() == allowed

    def test_bans_give_way_where_they_would_leave_nothing_that_is_allowed(self):
        """As before min_tokens, when a grammar allows nothing but the end."""
        bitmask = torch.tensor([0b100], dtype=torch.int32)
        confined = [self.row(bitmask=bitmask, banned_ids=(2, 3)), self.row(bitmask=bitmask | 1, banned_ids=(2, 3))]
        assert sample(torch.zeros(2, 6), confined).tolist() == [2, 0]
        x = torch.zeros(1, 4)
        x[0, 3] = 1
        assert sample(x, [self.row(banned_ids=(0, 1, 2, 3))]).tolist() == [3]

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_what_is_not_allowed_is_never_drawn(self, temperature):
        params = SamplingParams(temperature=temperature, allowed_token_ids=(1, 3), bad_words=((3, 3),), seed=3)
        token_ids = [3, 3]
        state = SamplingState(params, token_ids, 2, ())
        for _ in range(40):
            (token_id,) = sample(torch.zeros(1, 9), [state.next_row(token_ids)]).tolist()
            assert token_id in ((1,) if token_ids[-1] == 3 else (1, 3))
            token_ids.append(token_id)
        assert 1 in token_ids
