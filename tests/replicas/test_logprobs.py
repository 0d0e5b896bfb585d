"""Log probabilities of prompts and answers are transformers' in float32, however the prompt was computed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from replicas.build import build_engine
from replicas.config import EngineConfig
from replicas.messages import GenerateRequest, RequestSummary
from replicas.sampling import logprobs
from replicas.sampling.params import SamplingParams
from tests.support.checkpoints import TINY_CONFIGS, VOCAB_SIZE, write_tiny
from tests.support.generation import generate, resume

BLOCK = 4
NUM_TOKENS = 6
LENGTHS = [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 1, 33, 60]
PROMPTS = [[(7 * position + 13 * length) % (VOCAB_SIZE - 3) + 3 for position in range(length)] for length in LENGTHS]
ASKED = {"max_tokens": NUM_TOKENS, "logprobs": 2, "prompt_logprobs": 3}
TOLERANCE = 2e-5


@pytest.fixture(scope="module", params=["llama-gqa", "mistral-window"])
def tiny(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    return folder, write_tiny(folder, TINY_CONFIGS[request.param])


def engine_for(folder, **config):
    values = {"block_size": BLOCK, "max_running": 16, "max_batched_tokens": 256, "kv_cache_memory": 4 * 1024**2}
    return build_engine(str(folder), EngineConfig(**{**values, **config}))


@torch.inference_mode()
def assert_right(oracle, prompt: list[int], summary: RequestSummary) -> None:
    token_ids = [*prompt, *summary.token_ids]
    expected_TV = oracle(torch.tensor([token_ids])).logits[0].float().log_softmax(dim=-1)
    assert summary.prompt_logprobs[0] is None
    assert len(summary.prompt_logprobs) == len(prompt)
    assert len(summary.logprobs) == len(summary.token_ids)
    entries = [*summary.prompt_logprobs, *summary.logprobs]
    for position in range(1, len(token_ids)):
        entry, expected_V = entries[position], expected_TV[position - 1]
        assert entry is not None
        assert entry.logprob == pytest.approx(expected_V[token_ids[position]].item(), abs=TOLERANCE)
        count = ASKED["prompt_logprobs"] if position < len(prompt) else ASKED["logprobs"]
        assert [value for _, value in entry.top] == pytest.approx(expected_V.topk(count).values.tolist(), abs=TOLERANCE)
        for token_id, value in entry.top:
            assert value == pytest.approx(expected_V[token_id].item(), abs=TOLERANCE)


def assert_all_right(tiny, summaries) -> None:
    for prompt, summary in zip(PROMPTS, summaries, strict=True):
        assert_right(tiny[1], prompt, summary)


@pytest.mark.parametrize("together", [False, True])
def test_whole_prompts(tiny, together):
    assert_all_right(tiny, generate(engine_for(tiny[0]), PROMPTS, together, **ASKED))


@pytest.mark.parametrize("budget", [9, 16])
def test_prompts_in_chunks(tiny, budget):
    assert_all_right(tiny, generate(engine_for(tiny[0], max_batched_tokens=budget, max_running=8), PROMPTS, **ASKED))


def test_logits_in_pieces(tiny, monkeypatch):
    monkeypatch.setattr(logprobs, "PIECE_LOGITS", 5 * VOCAB_SIZE)
    assert_all_right(tiny, generate(engine_for(tiny[0]), PROMPTS, **ASKED))


def test_a_warm_cache_is_not_used_for_what_must_be_scored(tiny):
    """Twice the same, after others have filled the cache; and who does not ask still finds the blocks."""
    engine = engine_for(tiny[0])
    generate(engine, PROMPTS, max_tokens=NUM_TOKENS)
    for _ in range(2):
        summaries = generate(engine, PROMPTS, **ASKED)
        assert_all_right(tiny, summaries)
        assert {summary.cached_tokens for summary in summaries} == {0}
    cached = [summary.cached_tokens for summary in generate(engine, PROMPTS, max_tokens=1)]
    assert cached == [(length - 1) // BLOCK * BLOCK for length in LENGTHS]


def test_preempted_in_the_prompt_or_behind_it(tiny):
    block_bytes = 4 * 1024**2 // engine_for(tiny[0]).model.num_blocks
    longer = {**ASKED, "max_tokens": 40}
    engine = engine_for(tiny[0], kv_cache_memory=32 * block_bytes, max_batched_tokens=16)
    summaries = generate(engine, PROMPTS, **longer)
    assert engine.load().preemptions_total > 3
    assert_all_right(tiny, summaries)


def test_drawn_tokens_and_shaped_logits_do_not_matter(tiny):
    shaped = {"temperature": 0.5, "top_k": 3, "seed": 1, "repetition_penalty": 1.5, "logit_bias": ((5, 9.0),)}
    assert_all_right(tiny, generate(engine_for(tiny[0]), PROMPTS, **ASKED, **shaped))


def test_only_who_asks_gets_them(tiny):
    engine = engine_for(tiny[0])
    wishes = [{}, {"logprobs": 0}, {"prompt_logprobs": 0}, {"logprobs": 1, "prompt_logprobs": 2}]
    for index, wish in enumerate(wishes):
        sampling = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=NUM_TOKENS, **wish)
        engine.add(GenerateRequest(str(index), tuple(PROMPTS[-1]), sampling))
    finished = {}
    while engine.has_work:
        finished |= {int(summary.request_id): summary for summary in engine.step().finished}
    sizes = [(len(finished[index].logprobs), len(finished[index].prompt_logprobs)) for index in range(len(wishes))]
    assert sizes == [(0, 0), (NUM_TOKENS, 0), (0, LENGTHS[-1]), (NUM_TOKENS, LENGTHS[-1])]
    assert all(entry.top == () for entry in finished[1].logprobs)
    assert all(entry.top == () for entry in finished[2].prompt_logprobs[1:])


def test_events_carry_what_the_summary_has(tiny):
    """One entry for each token; the prompt's come with the first."""
    engine, events, finished = engine_for(tiny[0], max_batched_tokens=16), [], []
    sampling = SamplingParams(temperature=0.0, ignore_eos=True, **ASKED)
    engine.add(GenerateRequest("r", tuple(PROMPTS[-1]), sampling))
    while engine.has_work:
        output = engine.step()
        events += output.events
        finished += output.finished
    (summary,) = finished
    assert tuple(entry for event in events for entry in event.logprobs) == summary.logprobs
    assert [len(event.prompt_logprobs) for event in events] == [LENGTHS[-1]] + [0] * (NUM_TOKENS - 1)
    assert events[0].prompt_logprobs == summary.prompt_logprobs


@pytest.mark.parametrize("cut", [0, 1, 4])
def test_a_resumed_request_tells_those_of_its_own_tokens(tiny, cut):
    """The prompt's went out with the first token; so the cache may serve the rest."""
    (whole,) = generate(engine_for(tiny[0]), PROMPTS[-1:], **ASKED)
    other = engine_for(tiny[0])
    generate(other, PROMPTS[-1:], max_tokens=NUM_TOKENS)
    resumed = resume(other, PROMPTS[-1], whole.token_ids[:cut], **ASKED)
    assert resumed.token_ids == whole.token_ids
    assert_right(
        tiny[1],
        PROMPTS[-1],
        replace(
            resumed,
            logprobs=whole.logprobs[:cut] + resumed.logprobs,
            prompt_logprobs=resumed.prompt_logprobs or whole.prompt_logprobs,
        ),
    )
    assert (resumed.prompt_logprobs == ()) == (cut > 0)
    assert (resumed.cached_tokens > 0) == (cut > 0)


def test_an_aborted_request_has_no_half_of_its_prompt(tiny):
    engine = engine_for(tiny[0], max_batched_tokens=16)
    engine.add(GenerateRequest("r", tuple(PROMPTS[-1]), SamplingParams(prompt_logprobs=0)))
    engine.step()
    summary = engine.abort("r")
    assert summary is not None
    assert (summary.prompt_logprobs, summary.logprobs) == ((), ())
    while engine.has_work:
        engine.step()
    engine.check_integrity()
