"""How a rank computes: which form its matrices have, and who does the rest."""

from __future__ import annotations

from dataclasses import dataclass

from parallel.matrix import MatrixFactory, PlainMatrix
from replicas.layers.ops import Ops, TorchOps


@dataclass(frozen=True, slots=True)
class Compute:
    ops: Ops
    matrices: MatrixFactory


TORCH = Compute(TorchOps(), PlainMatrix)
