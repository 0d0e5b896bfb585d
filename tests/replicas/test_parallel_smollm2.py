"""The real model has 9 heads and 3 KV heads: three ranks share it, two can't."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from replicas.build import build_engine
from replicas.config import EngineConfig
from replicas.text.tokenizer import Tokenizer
from tests.support.generation import generate, tokens
from tests.support.prompts import PROMPTS

CONFIG = EngineConfig(dtype="float32", kv_cache_memory=64 * 1024**2, max_batched_tokens=256)


def test_two_ranks_are_refused_in_seconds_with_the_sizes_that_work(smollm2_path):
    started = time.monotonic()
    with pytest.raises(ValueError, match=r"over 2 ranks can't divide the model's 9 attention heads.*are 1, 3$"):
        build_engine(str(smollm2_path), replace(CONFIG, tensor_parallel=2))
    assert time.monotonic() - started < 5


def test_more_stages_than_layers_are_refused(smollm2_path):
    with pytest.raises(ValueError, match="31 stages is more than the model's 30 layers"):
        build_engine(str(smollm2_path), replace(CONFIG, pipeline_parallel=31))


@pytest.mark.slow
def test_three_ranks_answer_as_one(smollm2_path):
    tokenizer = Tokenizer.open(smollm2_path)
    prompts = [tokenizer.encode(text, add_bos=tokenizer.add_bos, parse_special=False) for text in PROMPTS[:8]]
    expected = tokens(generate(build_engine(str(smollm2_path), CONFIG), prompts, max_tokens=16))
    engine = build_engine(str(smollm2_path), replace(CONFIG, tensor_parallel=3))
    assert tokens(generate(engine, prompts, max_tokens=16)) == expected
    engine.close()
