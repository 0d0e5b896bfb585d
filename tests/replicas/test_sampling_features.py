"""What a request asks of its sampling holds in the engine as it would in transformers, for that request alone, and
whatever batch, cache, chunks, preemption or another replica do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers.generation import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from replicas.build import build_engine
from replicas.config import EngineConfig
from replicas.messages import GenerateRequest
from replicas.sampling.params import SamplingParams
from tests.support.checkpoints import TINY_CONFIGS, VOCAB_SIZE, write_tiny
from tests.support.generation import generate, resume, tokens

NUM_TOKENS = 24
EOS = 2
LENGTHS = [1, 4, 5, 17, 33, 60]
PROMPTS = [[(7 * position + 13 * length) % 120 + 3 for position in range(length)] for length in LENGTHS]

# The first tokens of a greedy answer are not known here, so words and ends are made of many tokens.
FEATURES: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 1.5},
    "output penalties": {"frequency_penalty": 2.0, "presence_penalty": 2.0},
    "rewards": {"frequency_penalty": -2.0, "presence_penalty": -2.0, "repetition_penalty": 0.8},
    "bias": {"logit_bias": tuple((token_id, 3.0) for token_id in range(0, VOCAB_SIZE, 5))},
    "bad words": {
        "bad_words": tuple((token_id,) for token_id in range(3, VOCAB_SIZE, 3))
        + tuple((first, second) for first in range(3, 60) for second in range(0, VOCAB_SIZE, 8))
    },
    "allowed": {"allowed_token_ids": tuple(range(2, VOCAB_SIZE, 4))},
    "min tokens": {"min_tokens": 20, "stop_token_ids": tuple(range(3, 100)), "ignore_eos": False},
    "drawn": {"temperature": 1.0, "top_p": 0.9, "seed": 7, "choice": 3, "repetition_penalty": 1.3, "min_p": 0.02},
    "drawn plainly": {"temperature": 1.0, "seed": 8},
    "plain": {},
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    return folder, write_tiny(folder, TINY_CONFIGS["llama-gqa"])


@pytest.fixture(scope="module")
def undisturbed(tiny):
    """Each feature's answers, a prompt alone at a time."""
    engine = engine_for(tiny[0])
    return {
        name: generate(engine, PROMPTS, together=False, max_tokens=NUM_TOKENS, logprobs=3, **feature)
        for name, feature in FEATURES.items()
    }


def engine_for(folder, **config):
    values = {"block_size": 4, "max_running": 16, "max_batched_tokens": 256, "kv_cache_memory": 4 * 1024**2}
    return build_engine(str(folder), EngineConfig(**{**values, "prefix_caching": False, **config}))


def params_of(name: str, **more: Any) -> SamplingParams:
    values = {"temperature": 0.0, "ignore_eos": True, "max_tokens": NUM_TOKENS, **FEATURES[name], **more}
    return SamplingParams(**values)


def generate_mixed(engine, names: list[str], **more: Any) -> dict[tuple[str, int], Any]:
    """All prompts with all these features, in one batch as far as there is room; summaries by feature and prompt."""
    keys = [(name, index) for index in range(len(PROMPTS)) for name in names]
    for name, index in keys:
        engine.add(GenerateRequest(f"{name} {index}", tuple(PROMPTS[index]), params_of(name, **more)))
    finished = {}
    while engine.has_work:
        finished |= {summary.request_id: summary for summary in engine.step().finished}
    engine.check_integrity()
    return {(name, index): finished[f"{name} {index}"] for name, index in keys}


def assert_same(summary, expected) -> None:
    """Tokens and reasons equal; log probabilities too, but for the rounding of other shapes."""
    assert (summary.token_ids, summary.finish_reason) == (expected.token_ids, expected.finish_reason)
    assert_close(summary.logprobs, expected.logprobs)


def assert_close(entries, expected) -> None:
    assert len(entries) == len(expected)
    for ours, theirs in zip(entries, expected, strict=True):
        if theirs is None:
            assert ours is None
            continue
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)
        assert [value for _, value in ours.top] == pytest.approx([value for _, value in theirs.top], abs=1e-4)


def processors(params: SamplingParams, num_prompt: int) -> LogitsProcessorList:
    processors = LogitsProcessorList()
    if params.logit_bias:
        processors.append(SequenceBiasLogitsProcessor({(token_id,): bias for token_id, bias in params.logit_bias}))
    processors.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    if params.bad_words:
        processors.append(NoBadWordsLogitsProcessor([list(word) for word in params.bad_words]))
    if params.min_tokens:
        ends = torch.tensor([*params.stop_token_ids, EOS])
        processors.append(MinNewTokensLengthLogitsProcessor(num_prompt, params.min_tokens, ends))
    return processors


@torch.inference_mode()
def assert_greedy_choices(oracle, params: SamplingParams, prompt: list[int], answer: tuple[int, ...]) -> None:
    """Each token is the one that transformers would take, of raw logits that its processors have changed."""
    raw_TV = oracle(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1].float()
    for index, token_id in enumerate(answer):
        so_far = torch.tensor([[*prompt, *answer[:index]]])
        scores_V = processors(params, len(prompt))(so_far, raw_TV[index : index + 1].clone())[0]
        counts_V = torch.bincount(so_far[0, len(prompt) :], minlength=VOCAB_SIZE)
        scores_V -= params.frequency_penalty * counts_V + params.presence_penalty * (counts_V > 0)
        if params.allowed_token_ids:
            barred = torch.ones(VOCAB_SIZE, dtype=torch.bool)
            barred[list(params.allowed_token_ids)] = False
            scores_V[barred] = -torch.inf
        assert scores_V.max() - scores_V[token_id] < 1e-4, index


@pytest.mark.parametrize("name", [name for name in FEATURES if "drawn" not in name])
def test_the_answer_is_transformers(tiny, undisturbed, name):
    for prompt, summary in zip(PROMPTS, undisturbed[name], strict=True):
        assert_greedy_choices(tiny[1], params_of(name), prompt, summary.token_ids)


@pytest.mark.parametrize("name", [name for name in FEATURES if name != "plain"])
def test_each_feature_changes_some_answer(undisturbed, name):
    assert tokens(undisturbed[name]) != tokens(undisturbed["plain"])


@pytest.mark.parametrize(
    "config", [{}, {"max_batched_tokens": 24}, {"max_running": 3}, {"prefix_caching": True}], ids=str
)
def test_features_stay_with_their_request_in_one_batch(tiny, undisturbed, config):
    """Slots are used again and again, by requests with other features."""
    for (name, index), summary in generate_mixed(engine_for(tiny[0], **config), list(FEATURES), logprobs=3).items():
        assert_same(summary, undisturbed[name][index])


def test_preempted_requests_answer_as_undisturbed_ones(tiny, undisturbed):
    block_bytes = 4 * 1024**2 // engine_for(tiny[0]).model.num_blocks
    engine = engine_for(tiny[0], kv_cache_memory=48 * block_bytes, prefix_caching=True)
    for (name, index), summary in generate_mixed(engine, list(FEATURES), logprobs=3).items():
        assert_same(summary, undisturbed[name][index])
    assert engine.load().preemptions_total > 0


@pytest.mark.parametrize("name", FEATURES)
def test_a_request_goes_on_elsewhere_as_if_nothing_had_happened(tiny, undisturbed, name):
    other = engine_for(tiny[0], prefix_caching=True, max_batched_tokens=16)
    for prompt, whole in list(zip(PROMPTS, undisturbed[name], strict=True))[::2]:
        for cut in {0, 1, 5, len(whole.token_ids) - 1}:
            values = {**FEATURES[name], "max_tokens": NUM_TOKENS, "logprobs": 3}
            summary = resume(other, prompt, whole.token_ids[:cut], **values)
            assert summary.token_ids == whole.token_ids
            assert_close(summary.logprobs, whole.logprobs[cut:])


LIKELIEST: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.0, "top_k": 1, "top_p": 0.5},
    {"temperature": 1.0, "top_p": 1e-9},
    {"temperature": 1e-6},
    {"temperature": 1.0, "min_p": 1.0},
    {"temperature": 0.0, "top_k": VOCAB_SIZE + 10},
]


def test_every_way_to_ask_for_the_likeliest_gives_it_in_one_batch(tiny, undisturbed):
    """Beside requests that draw, and twice."""
    engine = engine_for(tiny[0], prefix_caching=True)
    for _ in range(2):
        for index, ask in enumerate(LIKELIEST):
            sampling = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, seed=index, **ask)
            engine.add(GenerateRequest(str(ask), tuple(PROMPTS[3]), sampling))
            drawing = params_of("drawn plainly", choice=index)
            engine.add(GenerateRequest(f"draw {index}", tuple(PROMPTS[index % len(PROMPTS)]), drawing))
        finished = {}
        while engine.has_work:
            finished |= {summary.request_id: summary.token_ids for summary in engine.step().finished}
        assert {finished[str(ask)] for ask in LIKELIEST} == {undisturbed["plain"][3].token_ids}


def test_choices_differ_and_repeat(tiny):
    """As n choices of one prompt, which differ in nothing but their number."""
    engine = engine_for(tiny[0], prefix_caching=True)

    def choices() -> list[tuple[int, ...]]:
        found = {}
        for choice in range(4):
            sampling = SamplingParams(temperature=1.0, seed=7, choice=choice, max_tokens=NUM_TOKENS, ignore_eos=True)
            engine.add(GenerateRequest(f"choice {choice}", tuple(PROMPTS[3]), sampling))
        while engine.has_work:
            output = engine.step()
            assert all(event.request_id == f"choice {event.choice}" for event in output.events)
            found |= {summary.request_id: summary.token_ids for summary in output.finished}
        return [found[f"choice {choice}"] for choice in range(4)]

    first = choices()
    assert len(set(first)) == 4
    assert choices() == first
    generate_mixed(engine, ["drawn", "repetition"])
    assert choices() == first


@pytest.mark.parametrize(
    "sampling",
    [
        {"logit_bias": ((VOCAB_SIZE, 1.0),)},
        {"allowed_token_ids": (5, VOCAB_SIZE)},
        {"bad_words": ((5, VOCAB_SIZE),)},
        {"stop_token_ids": (VOCAB_SIZE,), "min_tokens": 3},
    ],
    ids=str,
)
def test_tokens_outside_the_vocabulary_are_refused_and_harm_nobody(tiny, undisturbed, sampling):
    engine = engine_for(tiny[0])
    engine.add(GenerateRequest("good", tuple(PROMPTS[0]), params_of("plain")))
    engine.step()
    with pytest.raises(ValueError, match=f"token id {VOCAB_SIZE} must be between 0 and {VOCAB_SIZE - 1}"):
        engine.add(GenerateRequest("bad", (5,), SamplingParams(**sampling)))
    (summary,) = [one for _ in range(NUM_TOKENS) for one in engine.step().finished]
    assert summary.token_ids == undisturbed["plain"][0].token_ids
