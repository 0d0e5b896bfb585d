"""The machine's limits: the best that was seen, and the least time that they leave."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from deploy.bench.engine.limits import Limits, best_of, best_seconds, largest_cache, matrix_rate, read_rate
from deploy.bench.engine.work import Work
from deploy.plan.arithmetic import Linear


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_best_try_counts_however_slow_the_others_are() -> None:
    clock = Clock()
    durations = iter([9.0, 5.0, *[3.0, 4.0, 2.5, 8.0, 3.0, 3.0, 7.0]])

    def kernel() -> None:
        clock.now += next(durations)

    assert best_seconds(kernel, clock) == 2.5


def test_a_short_kernel_is_called_often_in_one_try() -> None:
    clock, calls = Clock(), 0

    def kernel() -> None:
        nonlocal calls
        calls += 1
        clock.now += 0.001

    assert best_seconds(kernel, clock) == pytest.approx(0.001)
    assert calls == 2 + 7 * 20


def test_a_limit_that_was_reached_once_is_no_lower() -> None:
    assert best_of(Limits(1, 5, 9), Limits(2, 4, 10)) == Limits(2, 5, 10)


def test_the_least_time_is_that_of_the_resource_that_runs_out_first() -> None:
    limits = Limits(memory=100, step=200, matrix=1000)
    reading, computing = Work(flops=1000, bytes=800), Work(flops=9000, bytes=800)
    assert limits.seconds(reading) == 4.0
    assert limits.is_bound_by_memory(reading)
    assert limits.seconds(computing) == 9.0
    assert not limits.is_bound_by_memory(computing)


def test_the_largest_cache_is_read_from_what_the_kernel_says(tmp_path: Path) -> None:
    for index, text in enumerate(["48K\n", "2048K\n", "260M\n"]):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(text)
    assert largest_cache(tmp_path) == 260 * 2**20
    assert largest_cache(tmp_path / "none") == 64 * 2**20


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_every_precision_can_be_measured(dtype: torch.dtype) -> None:
    assert matrix_rate([Linear(64, 128), Linear(128, 64)], dtype, (32, 64)) > 0


def test_reading_can_be_measured() -> None:
    assert read_rate(1 << 20) > 0
