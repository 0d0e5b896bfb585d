"""An engine over several ranks generates what one rank does, in every layout and whatever cache, chunks or preemption
do. The ranks are real processes over Gloo; each layout starts them once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedConfig

from parallel.mesh import Mesh
from replicas.build import build_engine
from replicas.config import EngineConfig
from replicas.engine import Engine
from replicas.loading.checkpoint import load_model, open_checkpoint
from replicas.messages import GenerateRequest, RequestSummary, TokenLogprobs
from replicas.models.layout import tensor_sizes
from replicas.sampling.params import SamplingParams
from tests.support.checkpoints import TINY_CONFIGS, VOCAB_SIZE, write_tiny
from tests.support.generation import generate, tokens
from tests.support.paged import chunked_logits
from tests.support.rank_group import CHUNK, PROMPT, start_ranks

pytestmark = pytest.mark.slow

NUM_TOKENS = 8
LAYOUTS = {"tp2": (2, 1), "tp4": (4, 1), "pp2": (1, 2), "pp3": (1, 3), "tp2 pp2": (2, 2)}


def deeper(config: PreTrainedConfig, num_layers: int) -> PreTrainedConfig:
    return type(config)(**{**config.to_dict(), "num_hidden_layers": num_layers, "layer_types": None})


MODELS = {name: deeper(config, 3) for name, config in TINY_CONFIGS.items()}
MODELS["five-layers"] = deeper(TINY_CONFIGS["llama-gqa"], 5)
SEEDED = {"temperature": 0.8, "top_p": 0.95, "top_k": 40, "seed": 5}
FEATURES: list[dict[str, Any]] = [
    {},
    {"logprobs": 2, "prompt_logprobs": 1},
    {"logprobs": 0, "repetition_penalty": 1.5, "frequency_penalty": 0.5},
    {"min_tokens": NUM_TOKENS, "stop_token_ids": tuple(range(90)), "ignore_eos": False},
    {"temperature": 1.0, "seed": 9, "choice": 2, "presence_penalty": 1.5, "prompt_logprobs": 0},
    {"allowed_token_ids": tuple(range(0, VOCAB_SIZE, 3)), "bad_words": ((3,), (6, 9)), "logprobs": 20},
    {"logit_bias": tuple((token_id, 2.5) for token_id in range(0, VOCAB_SIZE, 2)), "logprobs": 1},
]


def prompts() -> list[list[int]]:
    lengths = [1, 4, 5, 16, 17, 33, 60]
    return [[(7 * position + 13 * length) % (VOCAB_SIZE - 3) + 3 for position in range(length)] for length in lengths]


def config(**changes) -> EngineConfig:
    values = {"block_size": 4, "max_running": 8, "max_batched_tokens": 128, "kv_cache_memory": 2 * 1024**2}
    return EngineConfig(**{**values, "prefix_caching": False, **changes})


@pytest.fixture(scope="module", params=LAYOUTS)
def ranks(request):
    with start_ranks(*LAYOUTS[request.param]) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    folders = {name: tmp_path_factory.mktemp(name) for name in MODELS}
    for name, folder in folders.items():
        write_tiny(folder, MODELS[name])
    return folders


@pytest.fixture(scope="module")
def alone(folders) -> dict[str, list[list[list[int]]]]:
    """What one rank answers: greedily and seeded."""
    answers = {}
    for name, folder in folders.items():
        engine = build_engine(str(folder), config())
        answers[name] = [tokens(generate(engine, prompts(), max_tokens=NUM_TOKENS, **s)) for s in ({}, SEEDED)]
    return answers


def skip_impossible(ranks, folder: Path) -> None:
    model, mesh = open_checkpoint(folder).config, ranks.leader.group.mesh
    if mesh.tensor not in tensor_sizes(model) or mesh.pipeline > model.num_layers:
        pytest.skip("the model can't be divided so")


@pytest.mark.parametrize("name", MODELS)
def test_every_model_answers_as_on_one_rank(ranks, folders, alone, name):
    skip_impossible(ranks, folders[name])
    engine = ranks.engine(folders[name], config(max_batched_tokens=32, prefix_caching=True))
    for sampling, expected in zip(({}, SEEDED), alone[name], strict=True):
        assert tokens(generate(engine, prompts(), max_tokens=NUM_TOKENS, **sampling)) == expected
    engine.close()


@pytest.mark.parametrize("name", MODELS)
def test_the_logprobs_of_a_prompt_are_those_of_one_rank(ranks, folders, name):
    skip_impossible(ranks, folders[name])
    whole = load_model(open_checkpoint(folders[name]), Mesh(), torch.float32, torch.device("cpu"))
    expected = chunked_logits(whole, PROMPT, CHUNK).log_softmax(dim=-1)
    logprobs_TV = ranks.prompt_logits(folders[name]).log_softmax(dim=-1)
    torch.testing.assert_close(logprobs_TV, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("disturbance", [{}, {"max_batched_tokens": 16}, {"max_running": 2}, {"prefix_caching": True}])
def test_no_schedule_changes_an_answer(ranks, folders, alone, disturbance):
    engine = ranks.engine(folders["five-layers"], config(**disturbance))
    for _ in range(2 if engine.config.prefix_caching else 1):
        assert tokens(generate(engine, prompts(), max_tokens=NUM_TOKENS)) == alone["five-layers"][0]
    engine.close()


def test_a_preempted_request_answers_as_an_undisturbed_one(ranks, folders, alone):
    engine = ranks.engine(folders["five-layers"], config())
    block_bytes = config().kv_cache_memory // engine.model.num_blocks
    engine.close()
    engine = ranks.engine(folders["five-layers"], config(kv_cache_memory=24 * block_bytes))
    for sampling, expected in zip(({}, SEEDED), alone["five-layers"], strict=True):
        assert tokens(generate(engine, prompts(), max_tokens=NUM_TOKENS, **sampling)) == expected
    assert engine.load().preemptions_total > 0
    engine.close()


def generate_features(engine: Engine) -> dict[int, RequestSummary]:
    """Every prompt with another feature, all in one batch."""
    for index, (prompt, feature) in enumerate(zip(prompts(), FEATURES, strict=True)):
        values = {"temperature": 0.0, "ignore_eos": True, "max_tokens": NUM_TOKENS, **feature}
        engine.add(GenerateRequest(str(index), tuple(prompt), SamplingParams(**values)))
    finished = {}
    while engine.has_work:
        finished |= {int(summary.request_id): summary for summary in engine.step().finished}
    engine.check_integrity()
    return finished


@pytest.mark.parametrize("disturbance", [{}, {"max_batched_tokens": 12}, {"kv_cache_memory": 24}], ids=str)
def test_features_and_log_probabilities_are_those_of_one_rank(ranks, folders, disturbance):
    expected = generate_features(build_engine(str(folders["five-layers"]), config()))
    engine = ranks.engine(folders["five-layers"], config())
    if blocks := disturbance.get("kv_cache_memory"):
        disturbance = {"kv_cache_memory": blocks * (config().kv_cache_memory // engine.model.num_blocks)}
    engine.close()
    engine = ranks.engine(folders["five-layers"], config(**disturbance))
    found = generate_features(engine)
    engine.close()
    for index, summary in expected.items():
        assert found[index].token_ids == summary.token_ids
        for name in ("logprobs", "prompt_logprobs"):
            ours, theirs = getattr(found[index], name), getattr(summary, name)
            assert [entry and len(entry.top) for entry in ours] == [entry and len(entry.top) for entry in theirs]
            assert flat(ours) == pytest.approx(flat(theirs), abs=1e-4)


def flat(entries: Sequence[TokenLogprobs | None]) -> list[float]:
    return [
        number
        for entry in entries
        if entry is not None
        for number in (entry.logprob, *(value for _, value in entry.top))
    ]
