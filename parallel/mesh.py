"""Which rank this process is, and how the ranks of one replica divide the model between them.

Ranks are numbered stage by stage: the ranks of one tensor-parallel group are neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist


@dataclass(frozen=True, slots=True)
class Mesh:
    """`tensor` ranks share every layer, `pipeline` stages share the stack. `tensor_group` holds this rank's
    tensor-parallel peers and is None when there are none."""

    tensor: int = 1
    pipeline: int = 1
    rank: int = 0
    tensor_group: dist.ProcessGroup | None = None

    def __post_init__(self) -> None:
        assert 0 <= self.rank < self.tensor * self.pipeline, f"rank {self.rank} is outside the mesh"
        assert self.tensor == 1 or self.tensor_group is not None, "tensor parallelism needs a process group"

    @property
    def tensor_rank(self) -> int:
        return self.rank % self.tensor

    @property
    def pipeline_rank(self) -> int:
        return self.rank // self.tensor
