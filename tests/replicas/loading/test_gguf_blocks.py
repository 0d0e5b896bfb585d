"""Codes, scales and minima taken out of GGUF blocks mean what the `gguf` library says the blocks mean."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType

from replicas.loading.gguf_blocks import holds_as_stored, stored_bits, stored_blocks

ROWS, COLUMNS = 5, 96


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q8_0"])
def test_blocks_as_stored(name: str) -> None:
    kind = GGMLQuantizationType[name]
    stored = gguf.quants.quantize(np.random.default_rng(0).normal(size=(ROWS, COLUMNS)).astype(np.float32), kind)
    blocks = stored_blocks(stored, kind)
    assert blocks.bits == stored_bits(kind)
    assert holds_as_stored(kind, blocks.bits)
    scales = blocks.scales_OG.astype(np.float32)
    minima = -128 * scales if blocks.minima_OG is None else blocks.minima_OG.astype(np.float32)
    weights = blocks.codes_OI.reshape(ROWS, -1, 32) * scales[..., None] + minima[..., None]
    np.testing.assert_allclose(weights.reshape(ROWS, COLUMNS), gguf.quants.dequantize(stored, kind), atol=1e-6)


@pytest.mark.parametrize(("name", "bits"), [("Q5_0", 8), ("Q6_K", 8), ("Q4_K", 8), ("Q8_0", 4), ("Q4_1", 8)])
def test_other_forms_are_quantized_anew(name: str, bits: int) -> None:
    assert not holds_as_stored(GGMLQuantizationType[name], bits)
