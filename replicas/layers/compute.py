"""How a rank computes: which form its matrices have, and who does the rest."""

from __future__ import annotations

from dataclasses import dataclass

from parallel.matrix import MatrixFactory, PlainMatrix
from replicas.layers.ops import Ops, TorchOps


@dataclass(frozen=True, slots=True)
class Compute:
    """`records_decodes`: a decoder layer is nothing but compiled kernels, whose calls can be made again."""

    ops: Ops
    matrices: MatrixFactory
    records_decodes: bool = False


TORCH = Compute(TorchOps(), PlainMatrix)
