"""Which rank this process is, and how the ranks of one replica divide the model between them.

Ranks are numbered stage by stage: the ranks of one tensor-parallel group are neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist


@dataclass(frozen=True, slots=True)
class Mesh:
    """`tensor` ranks share every layer, `pipeline` stages share the stack. `tensor_group` holds this rank's
    tensor-parallel peers; without it a mesh can plan, but not compute."""

    tensor: int = 1
    pipeline: int = 1
    rank: int = 0
    tensor_group: dist.ProcessGroup | None = None

    def __post_init__(self) -> None:
        assert 0 <= self.rank < self.size, f"rank {self.rank} is outside the mesh"

    @property
    def size(self) -> int:
        return self.tensor * self.pipeline

    @property
    def tensor_rank(self) -> int:
        return self.rank % self.tensor

    @property
    def pipeline_rank(self) -> int:
        return self.rank // self.tensor

    @property
    def is_first_stage(self) -> bool:
        return self.pipeline_rank == 0

    @property
    def is_last_stage(self) -> bool:
        return self.pipeline_rank == self.pipeline - 1

    def peer(self, stage: int) -> int:
        """The rank with this one's tensor-parallel place in another stage."""
        return stage * self.tensor + self.tensor_rank
