"""Matrices in other forms than plain: what is written to them is what they multiply with, whole or divided."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from parallel.matrix import Matrix
from replicas.layers.packed_matrix import PackedMatrix
from replicas.layers.quantized_matrix import GROUP, Blocks, QuantizedMatrix, quantize
from tests.support.kernels import needs_kernels

pytestmark = needs_kernels

ROWS = [1, 2, 3, 5, 8, 13, 40]
FORMS: dict[str, Callable[[tuple[int, int], torch.dtype], Matrix]] = {
    "int4": lambda shape, dtype: QuantizedMatrix(shape, 4, dtype),
    "int8": lambda shape, dtype: QuantizedMatrix(shape, 8, dtype),
    "bf16": lambda shape, dtype: PackedMatrix(shape),
}


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def filled(form: str, weights: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> Matrix:
    """Written in pieces that do not end where panels do."""
    matrix = FORMS[form](tuple(weights.shape), dtype)
    cut = len(weights) * 2 // 3
    matrix.part(0, cut).write(0, weights[:cut])
    rest = matrix.part(cut, len(weights) - cut)
    rest.write(0, weights[cut : cut + 5])
    rest.write(5, weights[cut + 5 :])
    return matrix


def dequantized(blocks: Blocks) -> torch.Tensor:
    codes = blocks.codes_OI.reshape(*blocks.scales_OG.shape, GROUP).astype(np.float32)
    least = -128 * blocks.scales_OG.astype(np.float32) if blocks.minima_OG is None else blocks.minima_OG
    weights = codes * blocks.scales_OG[..., None].astype(np.float32) + least[..., None].astype(np.float32)
    return torch.from_numpy(weights.reshape(blocks.codes_OI.shape))


def held(form: str, weights: torch.Tensor) -> torch.Tensor:
    """What a matrix of this form makes of the weights, written down independently."""
    return weights.bfloat16().float() if form == "bf16" else dequantized(quantize(weights, int(form[-1])))


def whole_codes(rows: int, columns: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Activations that 8 bits hold exactly: multiples of 1/32, and 127/32 in every group."""
    codes = torch.randint(-127, 128, (rows, columns), generator=torch.Generator().manual_seed(1))
    codes.unflatten(1, (-1, GROUP))[:, :, 7] = 127
    return (codes / 32).to(dtype)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("outputs", [16, 64, 83])
@pytest.mark.parametrize("rows", ROWS)
def test_product(form: str, outputs: int, rows: int) -> None:
    weights, x = random(outputs, 96), whole_codes(rows, 96)
    expected = x.float() @ held(form, weights).T
    torch.testing.assert_close(filled(form, weights).logits(x), expected, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("form", FORMS)
def test_bias_and_residual_are_added_before_the_one_rounding(form: str) -> None:
    weights, x = random(83, 96), random(5, 96, seed=1).bfloat16()
    bias, residual = random(83, seed=2).bfloat16(), random(5, 83, seed=3).bfloat16()
    matrix = filled(form, weights)
    expected = (matrix.logits(x) + bias.float() + residual.float()).bfloat16()
    torch.testing.assert_close(matrix(x, bias, residual.clone()), expected, atol=2**-7, rtol=2**-7)


@pytest.mark.parametrize("form", FORMS)
def test_lookup(form: str) -> None:
    weights, rows = random(83, 96), torch.tensor([0, 82, 17, 16, 15, 17])
    assert torch.equal(filled(form, weights).lookup(rows), held(form, weights)[rows].bfloat16())


@pytest.mark.parametrize("bits", [4, 8])
def test_quantized_products_of_float32_activations(bits: int) -> None:
    weights, x = random(64, 96), whole_codes(9, 96, torch.float32)
    matrix = filled(f"int{bits}", weights, torch.float32)
    expected = x @ held(f"int{bits}", weights).T
    torch.testing.assert_close(matrix(x), expected, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("bits", [4, 8])
def test_activations_are_rounded_by_half_a_step_at_most(bits: int) -> None:
    """One weight of 1 in each row shows the activations as the product sees them."""
    x, weights = random(300, 64, seed=1), torch.eye(64)
    error = (filled(f"int{bits}", weights, torch.float32)(x) - x).abs().unflatten(1, (-1, GROUP)).amax(-1)
    assert (error <= 1.02 * x.abs().unflatten(1, (-1, GROUP)).amax(-1) / 254 + 4e-3).all()


@pytest.mark.parametrize(("bits", "share"), [(4, 1 / 30), (8, 1 / 254)])
def test_rounding_errors_are_half_a_step_at_most(bits: int, share: float) -> None:
    weights = random(32, 256)
    error = (dequantized(quantize(weights, bits)) - weights).abs().unflatten(1, (-1, GROUP)).amax(-1)
    groups = weights.unflatten(1, (-1, GROUP))
    spread = groups.amax(-1) - groups.amin(-1) if bits == 4 else 2 * groups.abs().amax(-1)
    assert (error <= 1.05 * share * spread + 1e-3).all()


@pytest.mark.parametrize("weights", [torch.zeros(16, 32), torch.full((16, 32), 3.0), torch.full((16, 32), -7.5)])
@pytest.mark.parametrize("bits", [4, 8])
def test_constant_rows(bits: int, weights: torch.Tensor) -> None:
    torch.testing.assert_close(dequantized(quantize(weights, bits)), weights, atol=0, rtol=1e-2)


@pytest.mark.parametrize("form", FORMS)
def test_halves_of_a_matrix_sum_up_to_the_whole(form: str) -> None:
    """A row-parallel layer's ranks hold half of the columns each: groups are never divided, so nothing changes."""
    weights, x = random(48, 128), random(7, 128, seed=1).bfloat16()
    halves = [filled(form, weights[:, columns]).logits(x[:, columns]) for columns in (slice(0, 64), slice(64, 128))]
    torch.testing.assert_close(halves[0] + halves[1], filled(form, weights).logits(x), atol=1e-4, rtol=1e-4)
