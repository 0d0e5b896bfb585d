"""Which slice of a full tensor a rank holds: written down once, beside the parameter, and read by the loader."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from parallel.matrix import RowSink
from parallel.mesh import Mesh


@dataclass(frozen=True, slots=True)
class Shard:
    """Indices [start, stop) along one dimension of a full tensor."""

    dim: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class WeightSlot:
    """Where one tensor of a checkpoint goes: this rank copies `shard` of it (None: all) into `target`, which may
    be a view of a packed parameter, or takes rows to put them in an order of its own. `shape` is the full tensor's."""

    target: torch.Tensor | RowSink
    shape: tuple[int, ...]
    shard: Shard | None = None


def even_shard(size: int, mesh: Mesh, what: str, dim: int = 0) -> Shard:
    """This rank's equal part of `size`; `what` names the dimension in the message to the user."""
    if size % mesh.tensor:
        raise ValueError(f"{what} is {size}, which tensor parallelism over {mesh.tensor} ranks can't divide evenly")
    part = size // mesh.tensor
    return Shard(dim, mesh.tensor_rank * part, (mesh.tensor_rank + 1) * part)


def padded_shard(size: int, mesh: Mesh) -> Shard:
    """This rank's part of `size` in equal steps of ceil(size / ranks): the last ranks may hold less, or nothing."""
    step = -(-size // mesh.tensor)
    start = min(mesh.tensor_rank * step, size)
    return Shard(0, start, min(start + step, size))


def kv_head_shard(num_kv_heads: int, mesh: Mesh) -> Shard:
    """This rank's KV heads. With more ranks than heads, neighbouring ranks hold copies of one head."""
    if num_kv_heads >= mesh.tensor:
        return even_shard(num_kv_heads, mesh, "num_key_value_heads")
    if mesh.tensor % num_kv_heads:
        raise ValueError(
            f"num_key_value_heads is {num_kv_heads}, which tensor parallelism over {mesh.tensor} ranks can't share"
        )
    head = mesh.tensor_rank * num_kv_heads // mesh.tensor
    return Shard(0, head, head + 1)
