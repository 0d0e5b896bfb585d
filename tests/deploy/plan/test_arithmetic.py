"""The arithmetic against what real modules hold and compute, and against what is known of public models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from deploy.plan.arithmetic import (
    activation_bytes,
    decode_bytes,
    kv_bytes_per_token,
    linear_flops,
    model_parameters,
    parameters,
    prefill_pairs,
    weight_bytes,
)
from deploy.plan.layout import Layout, layouts, stages
from deploy.plan.shapes import SHAPES
from parallel.mesh import Mesh
from replicas.config import ModelConfig
from replicas.layers.attention import kv_bytes_per_block
from replicas.loading.checkpoint import load_model, open_checkpoint
from replicas.loading.hf_config import read_hf_config
from replicas.models.registry import build_model
from tests.support.checkpoints import TINY_CONFIGS, write_config, write_tiny
from tests.support.paged import PagedRun

META = torch.device("meta")
# As their publishers count them.
PUBLISHED = {
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.3-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "mistral-7b-v0.3": 7_248_023_552,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
}


@pytest.fixture(params=sorted(TINY_CONFIGS))
def tiny(request: pytest.FixtureRequest, tmp_path: Path) -> ModelConfig:
    return read_hf_config(write_config(tmp_path, TINY_CONFIGS[request.param]).parent)


def test_every_shape_has_the_published_number_of_parameters() -> None:
    assert {name: model_parameters(config) for name, config in SHAPES.items()} == PUBLISHED


def test_llama_8b_keeps_128_kib_a_token() -> None:
    config = SHAPES["llama-3.1-8b"]
    assert kv_bytes_per_token(config, 1, config.num_layers, itemsize=2) == 131_072
    assert kv_bytes_per_token(config, 8, config.num_layers, itemsize=2) == 131_072 // 8
    assert weight_bytes(config, Layout(1, 1), itemsize=2) == 2 * 8_030_261_248


def test_each_rank_of_each_layout_holds_what_was_counted(tiny: ModelConfig) -> None:
    for layout in layouts(tiny, gpus=8, gpus_per_node=8):
        held = []
        for rank in range(layout.gpus):
            mesh = Mesh(layout.tensor, layout.pipeline, rank)
            model = build_model(tiny, mesh, torch.bfloat16, META)
            held.append(sum(parameter.numel() for parameter in model.parameters()))
            stage = stages(tiny, layout.pipeline)[mesh.pipeline_rank]
            assert parameters(tiny, layout.tensor, stage) == held[-1], (layout, rank)
            kv_bytes = kv_bytes_per_token(tiny, layout.tensor, stage.layers, 2)
            assert 16 * kv_bytes == kv_bytes_per_block(tiny, mesh, 16, torch.bfloat16)
        assert weight_bytes(tiny, layout, itemsize=2) == 2 * max(held)


def test_linear_flops_are_those_that_torch_counts(tmp_path: Path) -> None:
    write_tiny(tmp_path, TINY_CONFIGS["qwen3"])
    checkpoint = open_checkpoint(tmp_path)
    model = load_model(checkpoint, Mesh(), torch.float32, torch.device("cpu"))
    prompt = list(range(3, 14))
    run = PagedRun(model, [len(prompt)])
    with FlopCounterMode(display=False) as counter:
        run.step([prompt])
    by_operator = counter.get_flop_counts()["Global"]
    counted = sum(
        flops for operator, flops in by_operator.items() if "mm" in str(operator) and "bmm" not in str(operator)
    )
    assert linear_flops(checkpoint.config, 1, tokens=len(prompt), sampled=len(prompt)) == counted


@pytest.mark.parametrize(("prompt", "window", "pairs"), [(4, 0, 10), (4, 2, 7), (4, 9, 10), (1, 1, 1)])
def test_a_query_sees_itself_and_what_came_before(prompt: int, window: int, pairs: int) -> None:
    seen = [min(position + 1, window or prompt) for position in range(prompt)]
    assert prefill_pairs(prompt, window) == pairs == sum(seen)


def test_a_decode_step_reads_weights_once_and_each_request_its_context() -> None:
    config = SHAPES["llama-3.1-8b"]
    embedding = config.vocab_size * config.hidden_size
    weights = (model_parameters(config) - embedding - config.hidden_size) * 2
    assert decode_bytes(config, 1, batch=0, context=100, itemsize=2) == weights
    assert decode_bytes(config, 1, batch=3, context=100, itemsize=2) == weights + 3 * 100 * 131_072
    narrow = replace(config, sliding_windows=(10,) * config.num_layers)
    assert decode_bytes(narrow, 1, batch=3, context=100, itemsize=2) == weights + 3 * 10 * 131_072


def test_activations_grow_with_the_step_and_shrink_with_ranks() -> None:
    config = SHAPES["llama-3.1-8b"]
    one, two = (activation_bytes(config, tensor, 2048, 64, itemsize=2) for tensor in (1, 2))
    assert two < one < activation_bytes(config, 1, 4096, 64, itemsize=2)
