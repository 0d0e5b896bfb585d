"""The compiled draw finds the token that adding all noise finds, or leaves the row to those who add it."""

from __future__ import annotations

import pytest
import torch

from replicas.kernels.cpu import functions
from replicas.kernels.cpu.library import load_library
from replicas.sampling.draw import argmax, draw
from replicas.sampling.noise import gumbel_noise, mix
from tests.support.kernels import needs_kernels

pytestmark = needs_kernels

VOCAB = 16 * 1024


def random(rows: int, vocab: int = VOCAB, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(rows)) * spread


def keys(rows: int) -> torch.Tensor:
    return mix(torch.arange(rows))


def expected(logits_RV: torch.Tensor, keys_R: torch.Tensor) -> torch.Tensor:
    return (logits_RV + gumbel_noise(keys_R, logits_RV.size(1))).argmax(dim=-1)


@pytest.fixture(autouse=True)
def kernels() -> None:
    load_library()


@pytest.mark.parametrize("spread", [0.0, 0.1, 1.0, 3.0, 10.0, 1e4])
def test_the_token_is_that_of_all_noise(spread: float) -> None:
    logits_RV, keys_R = random(100, spread=spread), keys(100)
    assert torch.equal(draw(logits_RV, keys_R), expected(logits_RV, keys_R))


def test_hardly_a_row_is_left_over() -> None:
    logits_RV, keys_R = random(200), keys(200)
    assert (functions.draw(logits_RV, keys_R) >= 0).float().mean() > 0.98


@pytest.mark.parametrize("vocab", [16, 32, 496, 1000, 49152])
def test_any_vocabulary(vocab: int) -> None:
    logits_RV, keys_R = random(64, vocab), keys(64)
    assert torch.equal(draw(logits_RV, keys_R), expected(logits_RV, keys_R))


@pytest.mark.parametrize("kept", [0, 1, 2, 50])
def test_excluded_tokens_are_not_drawn(kept: int) -> None:
    logits_RV, keys_R = random(200), keys(200)
    floors_R1 = logits_RV.topk(kept + 1).values[:, kept:]
    logits_RV[logits_RV <= floors_R1] = -torch.inf
    assert torch.equal(draw(logits_RV, keys_R), expected(logits_RV, keys_R))


def test_a_tie_goes_to_the_lowest_token() -> None:
    """So far from zero, logits that differ by less than a sixteenth are the same, and so are sums."""
    logits_RV, keys_R = random(200, spread=1.0) + 1e6, keys(200)
    sums_RV = logits_RV + gumbel_noise(keys_R, VOCAB)
    assert ((sums_RV == sums_RV.amax(dim=-1, keepdim=True)).sum(dim=-1) > 1).any()
    assert torch.equal(draw(logits_RV, keys_R), argmax(sums_RV))


def test_rare_noise() -> None:
    """Equal logits: the largest noise decides alone, out of more numbers than noise has values."""
    logits_RV, keys_R = torch.zeros(64, 160_000), keys(64)
    assert torch.equal(draw(logits_RV, keys_R), expected(logits_RV, keys_R))
