"""The seam at which a weight matrix is more than a plain tensor: packed for the processor, or quantized.

Layers ask their placement for matrices and never learn in which form they are held. The loader asks a matrix where
its rows go: into a plain tensor, or to a `RowSink` that puts them in order on the way.

Shape suffixes: T tokens, I input features, O output features on this rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import nn
from torch.nn import functional as F


class RowSink(Protocol):
    """Some rows of a matrix that is not a plain tensor."""

    def write(self, first: int, rows_OI: torch.Tensor) -> None:
        """Take the rows from `first` on."""


class Matrix(Protocol):
    """This rank's part of one weight matrix, or of several that share their input, one below the other."""

    @property
    def shape(self) -> torch.Size:
        """(outputs, inputs)."""

    def __call__(
        self, x_TI: torch.Tensor, bias_O: torch.Tensor | None = None, residual_TO: torch.Tensor | None = None
    ) -> torch.Tensor:
        """x W^T (+ bias) (+ residual). The residual's memory may become the result's."""

    def logits(self, x_TI: torch.Tensor) -> torch.Tensor:
        """x W^T, in float32 where that costs nothing."""

    def lookup(self, rows_T: torch.Tensor) -> torch.Tensor:
        """The rows with these numbers."""

    def part(self, first: int, count: int) -> torch.Tensor | RowSink:
        """Where the loader puts `count` rows from `first` on."""


@runtime_checkable
class GatedMatrix(Protocol):
    """A matrix of two equal parts, gate and up, that knows how to compute what a gated layer wants of them."""

    def gated(self, x_TI: torch.Tensor) -> torch.Tensor:
        """silu(x gate^T) * x up^T."""


class MatrixFactory(Protocol):
    """`names` are the checkpoint's names for what the matrix holds. Memory that is not loaded is zero."""

    def __call__(
        self, names: Sequence[str], shape: tuple[int, int], dtype: torch.dtype, device: torch.device
    ) -> Matrix: ...


class PlainMatrix(nn.Module):
    """A tensor, multiplied by torch."""

    def __init__(self, names: Sequence[str], shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(shape, dtype=dtype, device=device), requires_grad=False)

    @property
    def shape(self) -> torch.Size:
        return self.weight.shape

    def forward(
        self, x_TI: torch.Tensor, bias_O: torch.Tensor | None = None, residual_TO: torch.Tensor | None = None
    ) -> torch.Tensor:
        y_TO = F.linear(x_TI, self.weight, bias_O)
        return y_TO if residual_TO is None else residual_TO + y_TO

    def logits(self, x_TI: torch.Tensor) -> torch.Tensor:
        return F.linear(x_TI, self.weight)

    def lookup(self, rows_T: torch.Tensor) -> torch.Tensor:
        return F.embedding(rows_T, self.weight)

    def part(self, first: int, count: int) -> torch.Tensor:
        return self.weight.data[first : first + count]
