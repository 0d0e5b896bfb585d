"""Quantized products against float64: the kernel may err by the 8 bits of activations, and by nothing else."""

from __future__ import annotations

import pytest
import torch

from replicas.layers.quantized_matrix import GROUP, QuantizedMatrix
from tests.support.kernels import needs_kernels

pytestmark = needs_kernels

TILE = 12
BLOCK = 384


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def matrix(outputs: int, inputs: int, bits: int, dtype: torch.dtype = torch.float32) -> QuantizedMatrix:
    to = QuantizedMatrix((outputs, inputs), bits, dtype)
    to.part(0, outputs).write(0, random(outputs, inputs))
    return to


def weights(of: QuantizedMatrix) -> torch.Tensor:
    return of.lookup(torch.arange(of.shape[0])).double()


def rounded(x: torch.Tensor) -> torch.Tensor:
    """Activations as the kernel takes them, written down independently."""
    groups = x.double().unflatten(1, (-1, GROUP))
    scales = groups.abs().amax(-1, keepdim=True) / 127
    codes = torch.where(scales > 0, groups / scales, 0).round()
    return torch.flatten(codes * scales, 1)


def assert_products_are(actual: torch.Tensor, x: torch.Tensor, of: QuantizedMatrix) -> None:
    """Equal but for few codes that fall between two integers, and float32's own rounding."""
    expected = rounded(x) @ weights(of).T
    error = (actual.double() - expected).norm() / expected.norm()
    assert error < 2e-4, f"relative error {error:.1e}"


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rows", [*range(1, TILE + 1), 2 * TILE, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + TILE + 1])
def test_any_number_of_rows(bits: int, rows: int) -> None:
    x, of = random(rows, 160, seed=1), matrix(50, 160, bits)
    assert_products_are(of(x), x, of)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("inputs", [32, 64, 576, 1536])
def test_any_number_of_groups(bits: int, inputs: int) -> None:
    x, of = random(17, inputs, seed=1), matrix(33, inputs, bits)
    assert_products_are(of(x), x, of)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rows", [1, 9, 30])
def test_groups_of_very_different_magnitude_do_not_disturb_each_other(bits: int, rows: int) -> None:
    of = matrix(32, 256, bits)
    small = random(rows, 256, seed=1)
    small[:, 64:96] = 0
    large = torch.zeros_like(small)
    large[:, 64:96] = 1e4 * random(rows, 32, seed=2)
    expected = (rounded(small) + rounded(large)) @ weights(of).T
    torch.testing.assert_close(of(small + large).double(), expected, rtol=1e-4, atol=1.0)
    assert_products_are(of(small), small, of)
    assert_products_are(of(large), large, of)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1e6, 1e25])
def test_any_magnitude(bits: int, scale: float) -> None:
    x, of = random(13, 96, seed=1) * scale, matrix(32, 96, bits)
    assert_products_are(of(x) / scale, x / scale, of)


@pytest.mark.parametrize("bits", [4, 8])
def test_zero_is_zero(bits: int) -> None:
    x, of = random(25, 96, seed=1), matrix(32, 96, bits)
    x[[0, 11, 12, 24]] = 0
    assert not of(x)[[0, 11, 12, 24]].any()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rows", [7, BLOCK + 5])
def test_a_row_does_not_depend_on_its_neighbours(bits: int, rows: int) -> None:
    x, of = random(rows, 576, seed=1).bfloat16(), matrix(64, 576, bits, torch.bfloat16)
    each = torch.cat([of.logits(x[row : row + 1]) for row in range(rows)])
    torch.testing.assert_close(of.logits(x), each, rtol=0, atol=0)


@pytest.mark.parametrize("bits", [4, 8])
def test_bias_and_residual_of_every_block(bits: int) -> None:
    rows = BLOCK + 20
    x, of = random(rows, 64, seed=1).bfloat16(), matrix(40, 64, bits, torch.bfloat16)
    bias, residual = random(40, seed=2).bfloat16(), random(rows, 40, seed=3).bfloat16()
    expected = (of.logits(x) + bias.float() + residual.float()).bfloat16()
    torch.testing.assert_close(of(x, bias, residual.clone()), expected, atol=2**-7, rtol=2**-7)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rows", [1, 5, 40, BLOCK + 5])
@pytest.mark.parametrize("half", [16, 48, 40])
def test_gated(bits: int, rows: int, half: int) -> None:
    x, of = random(rows, 96, seed=1), matrix(2 * half, 96, bits)
    gate, up = of(x).chunk(2, dim=-1)
    torch.testing.assert_close(of.gated(x), torch.nn.functional.silu(gate) * up, rtol=1e-5, atol=1e-5)
