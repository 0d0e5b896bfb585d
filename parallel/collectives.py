"""The collectives that sharded layers need. Each returns its input at once when there is nobody to talk to."""

from __future__ import annotations

import torch
import torch.distributed as dist

from parallel.mesh import Mesh


def all_reduce(x: torch.Tensor, mesh: Mesh) -> torch.Tensor:
    """The sum of `x` over the tensor-parallel ranks, in place."""
    if mesh.tensor == 1:
        return x
    dist.all_reduce(x, group=mesh.tensor_group)
    return x


def all_gather_last_dim(x: torch.Tensor, mesh: Mesh) -> torch.Tensor:
    """The tensor-parallel ranks' `x`, equal in shape, side by side along the last dimension."""
    if mesh.tensor == 1:
        return x
    parts = [torch.empty_like(x) for _ in range(mesh.tensor)]
    dist.all_gather(parts, x.contiguous(), group=mesh.tensor_group)
    return torch.cat(parts, dim=-1)
