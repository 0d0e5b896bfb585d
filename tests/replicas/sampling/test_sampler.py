"""The sampler draws from exactly the distribution that was asked for, and depends on nothing but its own row."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from replicas.sampling.draw import argmax
from replicas.sampling.grammar_spec import Grammar
from replicas.sampling.noise import gumbel_noise, mix
from replicas.sampling.params import ParameterError, SamplingParams
from replicas.sampling.processors import process_logits
from replicas.sampling.rows import SampleRow
from replicas.sampling.sampler import filter_logits, sample
from replicas.sampling.state import SamplingState

VOCAB = 12
DRAWS = 20_000
SEEN = 1  # the prompt and the output so far


def logits(seed: int, rows: int = 1, vocab: int = VOCAB) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 2


def expected_distribution(logits_RV, params):
    """What transformers' warpers leave, as probabilities."""
    warpers = LogitsProcessorList([TemperatureLogitsWarper(params.temperature)])
    if params.top_k:
        warpers.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        warpers.append(TopPLogitsWarper(params.top_p))
    if params.min_p:
        warpers.append(MinPLogitsWarper(params.min_p))
    return warpers(None, logits_RV.clone()).softmax(dim=-1)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.0},
        {"top_k": 3},
        {"top_p": 0.7},
        {"min_p": 0.1},
        {"temperature": 1.5, "top_k": 6, "top_p": 0.9, "min_p": 0.02},
        {"choice": 5},
        {"logit_bias": ((2, 3.0), (7, -2.0)), "repetition_penalty": 1.5, "presence_penalty": 0.5, "top_p": 0.95},
        {"allowed_token_ids": (0, 2, 4, 6, 8), "bad_words": ((4,), (SEEN, 6)), "temperature": 1.3},
    ],
    ids=str,
)
def test_draws_follow_the_distribution(params):
    """Chi-square over 20,000 positions of one seed: the 99.99 % quantile bounds the statistic."""
    row_V = logits(3)
    params = SamplingParams(**{"temperature": 1.0, "seed": 11, **params})
    row = SamplingState(params, [SEEN, SEEN], 1, ()).next_row([SEEN, SEEN])
    rows = [replace(row, position=position) for position in range(DRAWS)]
    counts_V = torch.bincount(sample(row_V.repeat(DRAWS, 1), rows), minlength=VOCAB)
    processed_V = row_V.clone()
    process_logits(processed_V, [row])
    expected_V = expected_distribution(processed_V, params)[0] * DRAWS
    possible = expected_V > 0
    assert counts_V[~possible].sum() == 0
    statistic = ((counts_V - expected_V)[possible] ** 2 / expected_V[possible]).sum().item()
    freedom = int(possible.sum()) - 1
    # Wilson-Hilferty approximation of the chi-square quantile at 3.719 standard deviations
    bound = freedom * (1 - 2 / (9 * freedom) + 3.719 * math.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < bound


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.05, 2), st.integers(0, 15), st.floats(0.01, 1), st.floats(0, 1))
def test_filters_keep_what_transformers_keeps(seed, temperature, top_k, top_p, min_p):
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    row_V = logits(seed)
    kept_V = filter_logits(row_V / temperature, [params]).isfinite()
    expected_V = expected_distribution(row_V, params) > 0
    # where a cumulative probability lies within rounding of top_p, either answer is right
    assert (kept_V != expected_V).sum() <= (1 if top_p < 1 else 0)


class TestOneRowAlone:
    @settings(max_examples=30, deadline=None)
    @given(st.data())
    def test_a_row_is_sampled_alike_in_any_batch(self, data):
        size = data.draw(st.integers(1, 8))
        logits_RV = logits(data.draw(st.integers(0, 999)), size, 64)
        rows = [
            SampleRow(
                SamplingParams(
                    temperature=data.draw(st.sampled_from([0.0, 0.3, 1.0])),
                    top_k=data.draw(st.sampled_from([0, 1, 5])),
                    top_p=data.draw(st.sampled_from([1.0, 0.8])),
                    min_p=data.draw(st.sampled_from([0.0, 0.1])),
                    seed=data.draw(st.integers(0, 2**63 - 1)),
                ),
                data.draw(st.integers(0, 4000)),
            )
            for _ in range(size)
        ]
        together = sample(logits_RV.clone(), rows).tolist()
        alone = [sample(logits_RV[index : index + 1].clone(), [row]).item() for index, row in enumerate(rows)]
        assert together == alone

    def test_seed_position_and_choice_each_change_the_draw(self):
        def draws(**change):
            params = SamplingParams(seed=change.get("seed", 1), choice=change.get("choice", 0))
            rows = [SampleRow(params, position + change.get("shift", 0)) for position in range(64)]
            return sample(torch.zeros(64, 1000), rows).tolist()

        base = draws()
        assert draws() == base
        assert draws(shift=1)[:-1] == base[1:]
        for other in (draws(seed=2), draws(choice=1)):
            assert sum(a == b for a, b in zip(base, other, strict=True)) < 3


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.0},
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 1.0, "top_p": 1e-9},
        {"temperature": 1e-6},
        {"temperature": 1e-40},
        {"temperature": 1.0, "min_p": 1.0},
    ],
    ids=str,
)
def test_every_way_to_ask_for_the_likeliest_gives_it(params):
    logits_RV = logits(5, 50, 500)
    expected = logits_RV.argmax(dim=-1).tolist()
    rows = [SampleRow(SamplingParams(seed=index, **params), index) for index in range(50)]
    assert sample(logits_RV, rows).tolist() == expected


@pytest.mark.parametrize("mass", [1e-6, 0.1, 0.5, 0.9, 0.99, 0.9999, 1 - 1e-6])
@pytest.mark.parametrize("spread", [0.01, 1.0, 5.0])
def test_top_p_keeps_the_fewest_that_reach_the_mass_of_a_large_vocabulary(mass, spread):
    logits_RV = logits(7, 4, 20_000) * spread
    probabilities_RV = logits_RV.double().softmax(dim=-1)
    kept_RV = filter_logits(logits_RV.clone(), [SamplingParams(top_p=mass)] * 4).isfinite()
    for kept_V, probability_V in zip(kept_RV, probabilities_RV, strict=True):
        assert kept_V.all() or probability_V[kept_V].min() >= probability_V[~kept_V].max()
        assert probability_V[kept_V].sum() >= mass - 1e-5
        assert probability_V[kept_V].sum() - probability_V[kept_V].min() <= mass + 1e-5


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_banned_tokens_are_never_drawn(temperature):
    logits_RV = torch.zeros(200, 5)
    logits_RV[:, 2] = 50
    rows = [SampleRow(SamplingParams(temperature=temperature), index, banned_ids=(2, 4)) for index in range(200)]
    assert set(sample(logits_RV, rows).tolist()) <= {0, 1, 3}


class TestNoise:
    def test_it_is_standard_gumbel(self):
        size = 200_000
        noise = gumbel_noise(torch.tensor([1]), size)[0]
        assert noise.isfinite().all()
        # mean is Euler's constant, variance is pi squared over six; five standard errors
        assert abs(noise.mean().item() - 0.5772) < 5 * math.sqrt(1.645 / size)
        assert abs(noise.var().item() - math.pi**2 / 6) < 0.05

    def test_the_mixing_function_is_splitmix64(self):
        """Reference outputs of SplitMix64 seeded with 1234567, as its authors' code gives them."""
        golden = 0x9E3779B97F4A7C15
        states = [(1234567 + index * golden) % 2**64 for index in range(3)]
        signed = torch.tensor([state - 2**64 if state >= 2**63 else state for state in states])
        assert [value % 2**64 for value in mix(signed).tolist()] == [
            6457827717110365317,
            3203168211198807973,
            9817491932198370423,
        ]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", 2.1),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("seed", -1),
        ("seed", 2**63),
        ("max_tokens", 0),
        ("min_tokens", 17),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("frequency_penalty", float("nan")),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", float("inf")),
        ("logprobs", -1),
        ("logprobs", 21),
        ("prompt_logprobs", 21),
        ("choice", -1),
    ],
)
def test_wrong_parameters_are_refused_by_name(field, value):
    with pytest.raises(ParameterError, match=field) as refusal:
        SamplingParams(**{field: value})
    assert (refusal.value.field, refusal.value.value) == (field, pytest.approx(value, nan_ok=True))


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("logit_bias", ((-1, 5.0),), -1),
        ("logit_bias", ((2**40, 5.0),), 2**40),
        ("logit_bias", ((5, 100.5),), 100.5),
        ("logit_bias", ((5, float("nan")),), float("nan")),
        ("allowed_token_ids", (3, -7), -7),
        ("bad_words", ((3,), ()), ()),
        ("bad_words", ((3, -1),), -1),
    ],
)
def test_wrong_tokens_are_refused_by_what_is_wrong(field, value, named):
    with pytest.raises(ParameterError, match=field) as refusal:
        SamplingParams(**{field: value})
    assert refusal.value.value == pytest.approx(named, nan_ok=True)


def test_a_grammar_says_itself_what_is_allowed():
    with pytest.raises(ParameterError, match="allowed_token_ids"):
        SamplingParams(allowed_token_ids=(1,), grammar=Grammar("json_object", ""))


@pytest.mark.parametrize("vocab_size", [7, 256, 1024, 1000])
def test_argmax_takes_the_lowest_index_on_a_tie(vocab_size):
    x = torch.randint(0, 40, (50, vocab_size), generator=torch.Generator().manual_seed(0)).float()
    x[3] = -torch.inf
    x[4, -1] = 99
    assert argmax(x).tolist() == [row.index(max(row)) for row in x.tolist()]
