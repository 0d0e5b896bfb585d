"""What this machine can do at most: how fast it reads memory, and how fast it multiplies this model's matrices.

Each limit is the best of several kernels and many tries, so that what else the machine does cannot make it look low.
A model that fits into the processor's caches is read faster than memory allows: its limit is the rate at which as many
bytes as a step reads are read again and again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional as F

from deploy.bench.engine.work import Form, Work, weights_read
from deploy.plan.arithmetic import Linear, layer_linears
from replicas.config import ModelConfig

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
UNKNOWN_CACHE = 64 * 2**20
MOST_MEMORY = 2 * 2**30
TOKENS = (128, 512, 2048)  # of a step whose matrices are multiplied
TRIES = 7
SECONDS_A_TRY = 0.02  # at least, so that a clock's resolution and a thread pool's start do not count


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes a second from memory and, over as many bytes as a step reads, from wherever they then are; operations a
    second of the model's own matrix multiplications."""

    memory: float
    step: float
    matrix: float

    def seconds(self, work: Work) -> float:
        """The least time for this work, if reading and computing overlap completely."""
        return max(work.flops / self.matrix, work.bytes / max(self.memory, self.step))

    def is_bound_by_memory(self, work: Work) -> bool:
        return work.bytes / max(self.memory, self.step) > work.flops / self.matrix


def measure_limits(model: ModelConfig, form: Form) -> Limits:
    """With as many threads as torch now uses. Takes some seconds."""
    return Limits(
        memory=read_rate(min(4 * largest_cache(CACHES), MOST_MEMORY)),
        step=read_rate(round(weights_read(model, form))),
        matrix=max(matrix_rate(layer_linears(model, 1), dtype, TOKENS) for dtype in form.products),
    )


def best_of(first: Limits, second: Limits) -> Limits:
    """What two measurements together show: a limit that was reached once is no lower than that."""
    return Limits(max(first.memory, second.memory), max(first.step, second.step), max(first.matrix, second.matrix))


def read_rate(num_bytes: int) -> float:
    """Bytes a second, of a buffer that is read from its beginning to its end over and over."""
    buffer = torch.ones(num_bytes // 4)
    kernels: tuple[Callable[[], object], ...] = (buffer.sum, lambda: torch.dot(buffer, buffer))
    return buffer.nbytes / min(best_seconds(kernel) for kernel in kernels)


def matrix_rate(linears: Iterable[Linear], dtype: torch.dtype, tokens: Iterable[int]) -> float:
    """Operations a second over a layer's multiplications, each with the number of tokens that suits it best."""
    flops = seconds = 0.0
    for linear in linears:
        flops += linear.flops(1)
        seconds += min(_product_seconds(linear, dtype, count) / count for count in tokens)
    return flops / seconds


def largest_cache(folder: Path) -> int:
    """Bytes of the largest cache that this processor names."""
    sizes = [_size(file.read_text()) for file in folder.glob("index*/size")]
    return max(sizes, default=UNKNOWN_CACHE)


def best_seconds(kernel: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of one call, in the best of some tries."""
    kernel()
    started = clock()
    kernel()
    calls = max(1, round(SECONDS_A_TRY / max(clock() - started, 1e-9)))
    return min(_seconds(kernel, calls, clock) for _ in range(TRIES))


def _seconds(kernel: Callable[[], object], calls: int, clock: Callable[[], float]) -> float:
    started = clock()
    for _ in range(calls):
        kernel()
    return (clock() - started) / calls


def _product_seconds(linear: Linear, dtype: torch.dtype, tokens: int) -> float:
    if dtype == torch.int8:
        left = torch.ones(tokens, linear.in_features, dtype=dtype)
        right = torch.ones(linear.out_features, linear.in_features, dtype=dtype)
        return best_seconds(lambda: torch._int_mm(left, right.t()))
    inputs = torch.randn(tokens, linear.in_features).to(dtype)
    weight = torch.randn(linear.out_features, linear.in_features).to(dtype)
    return best_seconds(lambda: F.linear(inputs, weight))


def _size(text: str) -> int:
    """Bytes from what the kernel writes, such as `2048K`."""
    number, unit = text.strip()[:-1], text.strip()[-1]
    return int(number) * {"K": 2**10, "M": 2**20, "G": 2**30}[unit]
