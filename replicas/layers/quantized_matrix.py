"""A weight matrix of 4 or 8 bits by groups of 32 columns, as GGUF files hold them, in the order in which the compiled
kernel reads it: see kernels/cpu/panels.h.

Shape suffixes: T tokens, I input features, O output features, G groups of a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from replicas.kernels.cpu.functions import matmul_quantized

GROUP = 32
LANES = 16
QUADS = GROUP // 4
SIGN = 128  # what is added to signed 8-bit codes to make them unsigned


@dataclass(frozen=True, slots=True)
class Blocks:
    """Rows in 4 bits, w = scale * code + minimum, or in 8, w = scale * (code - 128). Codes are one to a byte; scales
    and minima are half precision, one for each group."""

    bits: int
    codes_OI: np.ndarray[Any, np.dtype[np.uint8]]
    scales_OG: np.ndarray[Any, np.dtype[np.float16]]
    minima_OG: np.ndarray[Any, np.dtype[np.float16]] | None = None

    def columns(self, start: int, stop: int) -> Blocks:
        """Some of the columns, in whole groups."""
        assert start % GROUP == stop % GROUP == 0, "a group is never divided"
        groups = slice(start // GROUP, stop // GROUP)
        minima_OG = None if self.minima_OG is None else self.minima_OG[:, groups]
        return Blocks(self.bits, self.codes_OI[:, start:stop], self.scales_OG[:, groups], minima_OG)


def quantize(rows_OI: torch.Tensor, bits: int) -> Blocks:
    """The nearest codes: in 4 bits between each group's least and largest weight, in 8 bits up to its largest
    magnitude."""
    groups = rows_OI.float().numpy().reshape(len(rows_OI), -1, GROUP)
    if bits == 8:
        scales = (np.abs(groups).max(axis=2) / 127).astype(np.float16)
        codes = np.rint(groups * _inverse(scales)[..., None]).clip(-127, 127) + SIGN
        return Blocks(8, codes.astype(np.uint8).reshape(rows_OI.shape), scales)
    minima = groups.min(axis=2).astype(np.float16)
    scales = ((groups.max(axis=2) - minima) / 15).astype(np.float16)
    codes = np.rint((groups - minima[..., None].astype(np.float32)) * _inverse(scales)[..., None]).clip(0, 15)
    return Blocks(4, codes.astype(np.uint8).reshape(rows_OI.shape), scales, minima)


def _inverse(scales: np.ndarray[Any, np.dtype[np.float16]]) -> np.ndarray[Any, np.dtype[np.float32]]:
    inverse = np.zeros(scales.shape, dtype=np.float32)
    np.divide(1.0, scales, out=inverse, where=scales > 0, dtype=np.float32)
    return inverse


class QuantizedMatrix:
    """Panels of 16 rows, each group by group: `panels[panel, group]` are the codes and then the scales of 16 rows."""

    def __init__(self, shape: tuple[int, int], bits: int, dtype: torch.dtype) -> None:
        outputs, inputs = shape
        assert inputs % GROUP == 0, "the kernel takes whole groups of columns"
        self.shape = torch.Size(shape)
        self.bits = bits
        self.dtype = dtype
        self.code_bytes = LANES * GROUP * bits // 8
        scale_bytes = 2 * LANES * (2 if bits == 4 else 1)
        self.panels = torch.zeros(
            -(-outputs // LANES), inputs // GROUP, self.code_bytes + scale_bytes, dtype=torch.uint8
        )

    def __call__(
        self, x_TI: torch.Tensor, bias_O: torch.Tensor | None = None, residual_TO: torch.Tensor | None = None
    ) -> torch.Tensor:
        return matmul_quantized(x_TI.contiguous(), self.panels, self.bits, self.shape[0], bias_O, residual_TO)

    def gated(self, x_TI: torch.Tensor) -> torch.Tensor:
        half = self.shape[0] // 2
        if half % LANES:
            gate_TO, up_TO = self(x_TI).chunk(2, dim=-1)
            return F.silu(gate_TO) * up_TO
        return matmul_quantized(x_TI.contiguous(), self.panels, self.bits, half, gated=True)

    def logits(self, x_TI: torch.Tensor) -> torch.Tensor:
        return matmul_quantized(x_TI.contiguous(), self.panels, self.bits, self.shape[0], float_output=True)

    def lookup(self, rows_T: torch.Tensor) -> torch.Tensor:
        panels, lanes = rows_T.numpy() // LANES, rows_T.numpy() % LANES
        quads = self.codes()[panels, lanes]
        if self.bits == 4:
            quads = np.concatenate((quads & 0x0F, quads >> 4), axis=2)
        weights = quads.reshape(*quads.shape[:2], GROUP).astype(np.float32) - (SIGN if self.bits == 8 else 0)
        weights *= self.scales(0)[panels, lanes].astype(np.float32)[..., None]
        if self.bits == 4:
            weights += self.scales(1)[panels, lanes].astype(np.float32)[..., None]
        return torch.from_numpy(weights.reshape(len(rows_T), -1)).to(self.dtype)

    def part(self, first: int, count: int) -> QuantizedRows:
        return QuantizedRows(self, first)

    def codes(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The bytes of codes, seen as [panel, row in the panel, group, vector, 4]."""
        codes = self.panels.numpy()[:, :, : self.code_bytes]
        return codes.reshape(*codes.shape[:2], -1, LANES, 4).transpose(0, 3, 1, 2, 4)

    def scales(self, index: int) -> np.ndarray[Any, np.dtype[np.float16]]:
        """Scales (0) or minima (1), seen as [panel, row in the panel, group]."""
        start = self.code_bytes + index * 2 * LANES
        return self.panels.numpy().view(np.float16)[:, :, start // 2 : start // 2 + LANES].transpose(0, 2, 1)


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """Rows of a quantized matrix from `first` on."""

    matrix: QuantizedMatrix
    first: int

    def write(self, first: int, rows_OI: torch.Tensor) -> None:
        self.write_blocks(first, quantize(rows_OI, self.matrix.bits))

    def write_blocks(self, first: int, blocks: Blocks) -> None:
        """Take rows that are quantized already, as they are."""
        assert blocks.bits == self.matrix.bits, "blocks must have the matrix's bits"
        count = len(blocks.codes_OI)
        numbers = np.arange(count) + (self.first + first)
        panels, lanes = numbers // LANES, numbers % LANES
        quads = blocks.codes_OI.reshape(count, -1, QUADS, 4)
        if blocks.bits == 4:
            quads = quads[:, :, : QUADS // 2] | np.left_shift(quads[:, :, QUADS // 2 :], 4, dtype=np.uint8)
        self.matrix.codes()[panels, lanes] = quads
        self.matrix.scales(0)[panels, lanes] = blocks.scales_OG
        if blocks.minima_OG is not None:
            self.matrix.scales(1)[panels, lanes] = blocks.minima_OG
