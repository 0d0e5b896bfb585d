"""SmolLM2-135M-Instruct from its GGUF generates, token for token, what transformers generates in float32."""

from __future__ import annotations

import os

import pytest
import torch

from replicas.build import build_engine
from replicas.config import EngineConfig
from replicas.text.tokenizer import Tokenizer
from tests.support.generation import assert_greedy, generate, tokens
from tests.support.prompts import PROMPTS

NUM_TOKENS = 64

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def all_cores():
    before = torch.get_num_threads()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def prompts(smollm2_path):
    tokenizer = Tokenizer.open(smollm2_path)
    prompts = [tokenizer.encode(text, add_bos=tokenizer.add_bos, parse_special=False) for text in PROMPTS]
    assert (len(prompts), min(map(len, prompts))) == (40, 1)
    assert max(map(len, prompts)) > 1400
    return prompts


@pytest.fixture(scope="module")
def answers(smollm2_path, prompts):
    """One prompt at a time, no cache, whole prefill."""
    return tokens(generate(engine_for(smollm2_path), prompts, together=False, max_tokens=NUM_TOKENS))


def engine_for(path, **config):
    return build_engine(
        str(path),
        EngineConfig(
            **{
                "dtype": "float32",
                "prefix_caching": False,
                "max_batched_tokens": 2048,
                "max_running": 64,
                "kv_cache_memory": 700 * 1024**2,
                **config,
            }
        ),
    )


def test_alone(smollm2_oracle, prompts, answers):
    for prompt, answer in zip(prompts, answers, strict=True):
        assert len(answer) == NUM_TOKENS
        assert_greedy(smollm2_oracle, prompt, answer)


@pytest.mark.parametrize(("budget", "caching"), [(256, True), (2048, False), (2048, True)])
def test_all_in_one_batch(smollm2_path, prompts, answers, budget, caching):
    engine = engine_for(smollm2_path, max_batched_tokens=budget, prefix_caching=caching)
    assert tokens(generate(engine, prompts, max_tokens=NUM_TOKENS)) == answers


def test_a_chunk_budget_of_32(smollm2_path, prompts, answers):
    engine = engine_for(smollm2_path, max_batched_tokens=32, max_running=32, prefix_caching=True)
    assert tokens(generate(engine, prompts, max_tokens=NUM_TOKENS)) == answers


def test_a_pool_so_small_that_requests_are_preempted(smollm2_path, prompts, answers):
    engine = engine_for(smollm2_path, kv_cache_memory=100 * 1024**2, prefix_caching=True)
    finished = generate(engine, prompts, max_tokens=NUM_TOKENS)
    assert engine.load().preemptions_total > 0
    assert tokens(finished) == answers
