"""Root-mean-square normalisation (Zhang and Sennrich, 2019), computed in float32 whatever the model's dtype."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from parallel.layers import Layer, Placement
from parallel.sharding import WeightSlot
from replicas.layers.ops import Ops


class RMSNorm(Layer):
    """x / rms(x) * weight over the last dimension."""

    def __init__(self, name: str, size: int, eps: float, placement: Placement, ops: Ops) -> None:
        super().__init__()
        self.name = name
        self.eps = eps
        self.ops = ops
        self.weight = placement.parameter(size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.ops.rms_norm(x, self.weight, self.eps)

    def weight_slots(self) -> Iterator[tuple[str, WeightSlot]]:
        yield f"{self.name}.weight", WeightSlot(self.weight.data, tuple(self.weight.shape))
