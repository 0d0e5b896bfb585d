"""Which layouts are offered: those that the model's code would build, within a node."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from deploy.plan.layout import Layout, layouts, stages
from deploy.plan.shapes import SHAPES
from parallel.mesh import Mesh
from replicas.models.registry import build_model

SMALL = replace(SHAPES["llama-3.2-1b"], num_layers=3, sliding_windows=(0,) * 3)


def _sizes(name: str, gpus: int) -> set[tuple[int, int]]:
    return {(layout.tensor, layout.pipeline) for layout in layouts(SHAPES[name], gpus, gpus_per_node=8)}


def test_all_that_fit_on_the_gpus_are_offered() -> None:
    assert _sizes("llama-3.1-8b", 1) == {(1, 1)}
    assert _sizes("llama-3.1-8b", 4) == {(1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2), (4, 1)}


def test_heads_that_ranks_cannot_divide_are_refused() -> None:
    tensors = {tensor for tensor, _ in _sizes("qwen2.5-7b", 8)}  # 28 heads over 4 KV heads
    assert tensors == {1, 2, 4}


def test_a_tensor_parallel_group_stays_in_a_node() -> None:
    assert max(tensor for tensor, _ in _sizes("llama-3.1-405b", 16)) == 8
    assert (8, 2) in _sizes("llama-3.1-405b", 16)


def test_a_stage_has_a_layer_at_least() -> None:
    assert {layout.pipeline for layout in layouts(SMALL, 8, gpus_per_node=8)} == {1, 2, 3}


@pytest.mark.parametrize("tensor", range(1, 9))
@pytest.mark.parametrize("heads", [(6, 2), (6, 3), (8, 2), (12, 4)])
def test_what_is_offered_is_what_the_model_can_build(heads: tuple[int, int], tensor: int) -> None:
    config = replace(SMALL, num_heads=heads[0], num_kv_heads=heads[1], intermediate_size=24, vocab_size=17)
    offered = Layout(tensor, 1) in set(layouts(config, 8, gpus_per_node=8))
    try:
        build_model(config, Mesh(tensor), torch.float32, torch.device("meta"))
        built = True
    except ValueError:
        built = False
    assert offered == built


def test_stages_hold_every_layer_once() -> None:
    for pipeline in (1, 2, 3):
        held = stages(SMALL, pipeline)
        assert sum(stage.layers for stage in held) == SMALL.num_layers
        assert [stage.first for stage in held] == [index == 0 for index in range(pipeline)]
        assert [stage.last for stage in held] == [index == pipeline - 1 for index in range(pipeline)]
