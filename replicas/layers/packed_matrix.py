"""A bfloat16 weight matrix in the order in which the compiled kernel reads it: see kernels/cpu/matmul_bf16.cpp.

Shape suffixes: T tokens, I input features, O output features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from replicas.kernels.cpu.functions import matmul_bf16

LANES = 16


class PackedMatrix:
    """Panels of 16 rows; within a panel the columns in pairs, and each pair of all 16 rows side by side."""

    def __init__(self, shape: tuple[int, int]) -> None:
        outputs, inputs = shape
        assert inputs % LANES == 0, "the kernel takes whole vectors of activations"
        self.shape = torch.Size(shape)
        self.panels = torch.zeros(-(-outputs // LANES), inputs // 2, LANES, 2, dtype=torch.bfloat16)

    @property
    def rows(self) -> torch.Tensor:
        """The panels, seen row by row: panel, row within it, pair, column within the pair."""
        return self.panels.permute(0, 2, 1, 3)

    def __call__(
        self, x_TI: torch.Tensor, bias_O: torch.Tensor | None = None, residual_TO: torch.Tensor | None = None
    ) -> torch.Tensor:
        return matmul_bf16(x_TI.contiguous(), self.panels, self.shape[0], bias_O, residual_TO)

    def logits(self, x_TI: torch.Tensor) -> torch.Tensor:
        return matmul_bf16(x_TI.contiguous(), self.panels, self.shape[0], float_output=True)

    def lookup(self, rows_T: torch.Tensor) -> torch.Tensor:
        return self.rows[rows_T // LANES, rows_T % LANES].flatten(1)

    def part(self, first: int, count: int) -> PackedRows:
        return PackedRows(self, first)


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Rows of a packed matrix from `first` on."""

    matrix: PackedMatrix
    first: int

    def write(self, first: int, rows_OI: torch.Tensor) -> None:
        numbers = torch.arange(len(rows_OI)) + (self.first + first)
        pairs = rows_OI.to(torch.bfloat16).unflatten(1, (-1, 2))
        self.matrix.rows[numbers // LANES, numbers % LANES] = pairs


def packed_matrix(names: Sequence[str], shape: tuple[int, int]) -> PackedMatrix | None:
    """None where the kernel does not take such rows."""
    return PackedMatrix(shape) if shape[1] % LANES == 0 else None
