"""The engine generates what transformers would in float32, whatever batch, cache, chunks or preemption do."""

from __future__ import annotations

import pytest
import torch

from replicas.build import build_engine
from replicas.config import EngineConfig
from tests.support.checkpoints import TINY_CONFIGS, VOCAB_SIZE, scaled, write_tiny
from tests.support.generation import assert_greedy, generate, resume, tokens

NUM_TOKENS = 24


def prompts_of_all_lengths():
    """Around block borders (4 and 16), beyond the window of 20, and up to a few chunks."""
    lengths = [1, 2, 3, 4, 5, 15, 16, 17, 31, 33, 60, 97]
    return [[(7 * position + 13 * length) % (VOCAB_SIZE - 3) + 3 for position in range(length)] for length in lengths]


@pytest.fixture(scope="module", params=TINY_CONFIGS)
def tiny(request, tmp_path_factory):
    """A folder with a tiny checkpoint, its oracle, and the right answers."""
    folder = tmp_path_factory.mktemp(request.param)
    oracle = write_tiny(folder, TINY_CONFIGS[request.param])
    answers = tokens(generate(engine_for(folder), prompts_of_all_lengths(), together=False, max_tokens=NUM_TOKENS))
    for prompt, answer in zip(prompts_of_all_lengths(), answers, strict=True):
        assert_greedy(oracle, prompt, answer)
    return folder, answers


def engine_for(folder, **config):
    return build_engine(
        str(folder),
        EngineConfig(
            **{
                "block_size": 4,
                "max_running": 16,
                "max_batched_tokens": 256,
                "kv_cache_memory": 4 * 1024**2,
                "prefix_caching": False,
                **config,
            }
        ),
    )


def answers_of(engine, **options):
    return tokens(generate(engine, prompts_of_all_lengths(), max_tokens=NUM_TOKENS, **options))


def test_a_batch_answers_as_each_prompt_alone(tiny):
    folder, answers = tiny
    assert answers_of(engine_for(folder)) == answers


@pytest.mark.parametrize("budget", [16, 23])
def test_chunked_prefill_answers_as_whole(tiny, budget):
    folder, answers = tiny
    assert answers_of(engine_for(folder, max_batched_tokens=budget)) == answers


def test_a_cache_hit_answers_as_a_miss(tiny):
    folder, answers = tiny
    engine = engine_for(folder, prefix_caching=True, max_batched_tokens=32)
    assert answers_of(engine) == answers
    again = generate(engine, prompts_of_all_lengths(), max_tokens=NUM_TOKENS)
    assert tokens(again) == answers
    assert [summary.cached_tokens for summary in again] == [
        (len(prompt) - 1) // 4 * 4 for prompt in prompts_of_all_lengths()
    ]


def test_a_shared_prefix_with_another_end_answers_as_without_cache(tiny):
    folder, _ = tiny
    stem = prompts_of_all_lengths()[-1]
    variants = [stem[:cut] + [tail] * 3 for cut in (40, 41, 64, 96) for tail in (5, 9)]
    cached, plain = engine_for(folder, prefix_caching=True), engine_for(folder)
    generate(cached, [stem], max_tokens=2)
    hits = generate(cached, variants, max_tokens=NUM_TOKENS)
    assert all(summary.cached_tokens >= 40 for summary in hits)
    assert tokens(hits) == tokens(generate(plain, variants, max_tokens=NUM_TOKENS))


@pytest.mark.parametrize("caching", [False, True])
def test_a_preempted_request_answers_as_an_undisturbed_one(tiny, caching):
    folder, answers = tiny
    whole = engine_for(folder)
    block_bytes = 4 * 1024**2 // whole.model.num_blocks
    engine = engine_for(folder, kv_cache_memory=44 * block_bytes, prefix_caching=caching)
    assert answers_of(engine) == answers
    assert engine.load().preemptions_total > 0


@pytest.mark.parametrize("disturbance", [{"max_batched_tokens": 16}, {"max_running": 2}, {"prefix_caching": True}])
def test_seeded_samples_do_not_depend_on_the_schedule(tiny, disturbance):
    folder, _ = tiny
    sampling = {"temperature": 0.8, "top_p": 0.95, "top_k": 40, "seed": 5}
    assert answers_of(engine_for(folder, **disturbance), **sampling) == answers_of(engine_for(folder), **sampling)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "top_p": 0.9, "seed": 11}, {"min_tokens": 12}])
@pytest.mark.parametrize("caching", [False, True])
def test_a_request_resumed_elsewhere_answers_as_an_undisturbed_one(tiny, sampling, caching):
    folder, _ = tiny
    prompts = prompts_of_all_lengths()[2::3]
    undisturbed = generate(engine_for(folder), prompts, max_tokens=NUM_TOKENS, **sampling)
    other = engine_for(folder, prefix_caching=caching, max_batched_tokens=16)
    for prompt, whole in zip(prompts, undisturbed, strict=True):
        for cut in (0, 1, 3, 4, NUM_TOKENS - 1):
            summary = resume(other, prompt, whole.token_ids[:cut], max_tokens=NUM_TOKENS, **sampling)
            assert summary.token_ids == whole.token_ids
            assert (summary.prompt_tokens, summary.finish_reason) == (len(prompt), "length")
            assert summary.cached_tokens <= len(prompt)


@pytest.mark.parametrize("kind", ["dynamic", "linear", "yarn", "llama3"])
def test_scaled_rope_generates_as_transformers_beyond_the_trained_length(tmp_path, kind):
    scaling = {"rope_type": kind, "factor": 4.0, "original_max_position_embeddings": 32}
    if kind == "llama3":
        scaling |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    oracle = write_tiny(tmp_path, scaled(scaling, max_positions=32 if kind == "dynamic" else 128))
    prompts = [prompt for prompt in prompts_of_all_lengths() if len(prompt) < 32 - NUM_TOKENS or kind != "dynamic"]
    for config in ({"max_batched_tokens": 16}, {"prefix_caching": True}):
        engine = engine_for(tmp_path, **config)
        for _ in range(2):
            answers = tokens(generate(engine, prompts, max_tokens=NUM_TOKENS))
            for prompt, answer in zip(prompts, answers, strict=True):
                expected = oracle.generate(
                    torch.tensor([prompt]),
                    max_new_tokens=NUM_TOKENS,
                    do_sample=False,
                    eos_token_id=None,
                    pad_token_id=0,
                )
                assert answer == expected[0, len(prompt) :].tolist()


def test_min_tokens_forbids_the_end_before(tiny):
    folder, answers = tiny
    engine = engine_for(folder)
    first = answers[3][0]
    prompt = [prompts_of_all_lengths()[3]]
    (stopped,) = generate(engine, prompt, max_tokens=NUM_TOKENS, stop_token_ids=(first,))
    assert (stopped.token_ids, stopped.finish_reason) == ((first,), "stop")
    (held,) = generate(engine, prompt, max_tokens=NUM_TOKENS, stop_token_ids=(first,), min_tokens=10)
    assert len(held.token_ids) >= 10
    assert first not in held.token_ids[:10]
