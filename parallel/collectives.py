"""The collectives that sharded layers need. Each returns its input at once when there is nobody to talk to.

All of them pass through here, so that this is the place to choose how a message travels. A decode step's all-reduces
are small (hidden size times batch) and bound by latency: on GPUs that see each other's memory, a one-shot all-reduce
over `torch.distributed._symmetric_memory` would take those below some hundred KiB in `all_reduce`.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from parallel.mesh import Mesh


def all_reduce(x: torch.Tensor, mesh: Mesh) -> torch.Tensor:
    """The sum of `x` over the tensor-parallel ranks, in place."""
    if mesh.tensor == 1:
        return x
    dist.all_reduce(x, group=_peers(mesh))
    return x


def all_gather(x: torch.Tensor, mesh: Mesh) -> list[torch.Tensor]:
    """The tensor-parallel ranks' `x`, equal in shape, in the order of the ranks."""
    if mesh.tensor == 1:
        return [x]
    parts = [torch.empty_like(x) for _ in range(mesh.tensor)]
    dist.all_gather(parts, x.contiguous(), group=_peers(mesh))
    return parts


def all_gather_last_dim(x: torch.Tensor, mesh: Mesh) -> torch.Tensor:
    """The tensor-parallel ranks' `x`, equal in shape, side by side along the last dimension."""
    if mesh.tensor == 1:
        return x
    return torch.cat(all_gather(x, mesh), dim=-1)


def _peers(mesh: Mesh) -> dist.ProcessGroup:
    assert mesh.tensor_group is not None, "this mesh can plan, but not compute"
    return mesh.tensor_group
