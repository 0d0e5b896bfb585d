"""Kernel calls made again give what computing the step anew gives, whatever has changed in between."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from transformers import LlamaConfig, MistralConfig

from replicas.build import build_engine
from replicas.config import EngineConfig
from replicas.layers.recorded import FEWEST_BLOCKS
from tests.support.checkpoints import write_tiny
from tests.support.generation import generate, tokens
from tests.support.kernels import needs_kernels

pytestmark = needs_kernels

SIZES = {
    "vocab_size": 96,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 512,
}
CONFIG = EngineConfig(block_size=4, kv_cache_memory=4 * 1024**2, max_running=16, max_batched_tokens=256)
PRECISIONS = [{"dtype": "bfloat16"}, {"quantization": "int8"}, {"quantization": "int4"}]
ROOM = FEWEST_BLOCKS * CONFIG.block_size


@pytest.fixture(scope="module", params=[LlamaConfig(**SIZES), MistralConfig(**SIZES, sliding_window=20)])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny(folder, request.param)
    return folder


@pytest.mark.parametrize("precision", PRECISIONS)
def test_answers_are_those_of_steps_computed_anew(folder: Path, precision: dict[str, str]) -> None:
    """Sequences come and go, and one outgrows the room for blocks that was recorded first."""
    lengths = [1, 7, 30, ROOM - 20, 5, 60, 2, 90, 11, 44]
    prompts = [[(7 * position + 13 * length) % 93 + 3 for position in range(length)] for length in lengths]
    config = replace(CONFIG, **precision)  # type: ignore[arg-type]
    again = build_engine(str(folder), config)
    anew = build_engine(str(folder), replace(config, record_decodes=False))
    for together in (True, False):
        answers = tokens(generate(again, prompts, together=together, max_tokens=30))
        assert answers == tokens(generate(anew, prompts, together=together, max_tokens=30))


def test_features_and_log_probabilities_are_those_of_steps_computed_anew(folder: Path) -> None:
    prompts = [[(7 * position + 13 * length) % 93 + 3 for position in range(length)] for length in (1, 7, 30)]
    config = replace(CONFIG, dtype="bfloat16")
    again = build_engine(str(folder), config)
    anew = build_engine(str(folder), replace(config, record_decodes=False))
    for feature in ({"temperature": 0.0}, {"temperature": 1.0, "repetition_penalty": 1.4, "frequency_penalty": 0.3}):
        asked = {"max_tokens": 20, "logprobs": 3, "prompt_logprobs": 2, **feature}
        found, expected = generate(again, prompts, **asked), generate(anew, prompts, **asked)
        assert tokens(found) == tokens(expected)
        assert [summary.logprobs for summary in found] == [summary.logprobs for summary in expected]
        assert [summary.prompt_logprobs for summary in found] == [summary.prompt_logprobs for summary in expected]


def test_calls_are_made_again(folder: Path) -> None:
    engine = build_engine(str(folder), replace(CONFIG, dtype="bfloat16"))
    decodes = engine._executor._runner._model.decodes  # type: ignore[attr-defined]
    recorded = len(decodes._steps)
    generate(engine, [[5, 6, 7]], max_tokens=20)
    assert len(decodes._steps) - recorded <= 1
