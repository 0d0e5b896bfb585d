"""Predicted times: ordered as physics orders them, and never faster than the machine's limits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from deploy.plan.arithmetic import decode_bytes, linear_flops
from deploy.plan.devices import GPUS
from deploy.plan.layout import Layout
from deploy.plan.shapes import SHAPES
from deploy.plan.tables import OUR_TABLES, KernelTimes, read_tables
from deploy.plan.timing import decode_seconds, prefill_seconds

LLAMA = SHAPES["llama-3.1-8b"]
ONE = Layout(1, 1)


@pytest.fixture(scope="module", params=sorted(GPUS))
def times(request: pytest.FixtureRequest) -> KernelTimes:
    return read_tables(OUR_TABLES, GPUS[request.param])


@pytest.mark.parametrize("name", sorted(SHAPES))
@pytest.mark.parametrize("tensor", [1, 2])
def test_no_step_is_faster_than_memory_and_arithmetic_allow(times: KernelTimes, name: str, tensor: int) -> None:
    config, layout = SHAPES[name], Layout(tensor, 1)
    for batch in (1, 64, 500):
        least = decode_bytes(config, tensor, batch, 2000, 2) / times.gpu.bandwidth
        assert least < decode_seconds(config, layout, times, batch, 2000) < 20 * least + 5e-3
    least = linear_flops(config, tensor, 3000, 1) / times.gpu.flops
    assert least < prefill_seconds(config, layout, times, 3000) < 5 * least + 20e-3


def test_more_work_takes_longer(times: KernelTimes) -> None:
    for smaller, larger in (((1, 1000), (64, 1000)), ((64, 1000), (64, 8000)), ((64, 1000), (512, 1000))):
        assert decode_seconds(LLAMA, ONE, times, *smaller) < decode_seconds(LLAMA, ONE, times, *larger)
    assert prefill_seconds(LLAMA, ONE, times, 1000) < prefill_seconds(LLAMA, ONE, times, 8000)


def test_tensor_parallelism_shortens_a_large_models_step_but_not_to_its_share(times: KernelTimes) -> None:
    large = SHAPES["llama-3.3-70b"]
    alone, divided = (decode_seconds(large, Layout(tensor, 1), times, 64, 4096) for tensor in (1, 8))
    assert alone / 8 < divided < alone / 2


def test_a_pipeline_shortens_no_prompt(times: KernelTimes) -> None:
    """All of a prompt's chunks go through all stages, one after another."""
    large = SHAPES["llama-3.3-70b"]
    for prompt in (1024, 32768):
        alone, staged = (prefill_seconds(large, Layout(1, pipeline), times, prompt) for pipeline in (1, 4))
        assert alone < staged < 1.2 * alone


def test_a_window_spares_attention(times: KernelTimes) -> None:
    narrow = replace(LLAMA, sliding_windows=(1024,) * LLAMA.num_layers)
    assert decode_seconds(narrow, ONE, times, 64, 8192) == pytest.approx(decode_seconds(LLAMA, ONE, times, 64, 1024))
    assert prefill_seconds(narrow, ONE, times, 16384) < prefill_seconds(LLAMA, ONE, times, 16384)


def test_between_nodes_a_message_takes_longer(times: KernelTimes) -> None:
    assert times.send(10**6, within_node=False) > 2 * times.send(10**6, within_node=True)


def test_faster_memory_makes_the_faster_decode() -> None:
    h100, h200 = (read_tables(OUR_TABLES, GPUS[name]) for name in ("h100", "h200"))
    ratio = decode_seconds(LLAMA, ONE, h100, 64, 4096) / decode_seconds(LLAMA, ONE, h200, 64, 4096)
    assert 1.2 < ratio < 4.8 / 3.35 + 1e-9
