"""Joins the ranks of one replica: a meeting place at a free port, process groups by device, a clean end.

Rank 0 opens a `MeetingPlace` and tells the others its address; how they are started is somebody else's business.
Tensors travel over NCCL between GPUs and over Gloo between CPUs; a Gloo group beside them carries what CPUs must know.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, but missing in its list of names

from parallel.mesh import Mesh

# Long enough for any step: who dies or stops is found by the watchdog, and these only end what it cannot see.
COLLECTIVE_SECONDS = 300.0
JOIN_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class MeetingPlace:
    """Where the ranks find each other. Rank 0 opens it at a port that the system chooses; the others visit it."""

    store: TCPStore
    host: str
    port: int

    @classmethod
    def open(cls, host: str) -> MeetingPlace:
        listener = socket.create_server((host, 0))
        port = listener.getsockname()[1]
        store = TCPStore(
            host,
            port,
            is_master=True,
            timeout=timedelta(seconds=JOIN_SECONDS),
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
        return cls(store, host, port)

    @classmethod
    def visit(cls, host: str, port: int) -> MeetingPlace:
        return cls(TCPStore(host, port, is_master=False, timeout=timedelta(seconds=JOIN_SECONDS)), host, port)


@dataclass(frozen=True, slots=True)
class RankGroup:
    """One rank's membership: its place in the mesh, its device, and the group of all ranks that carries CPU tensors
    (None for a rank alone)."""

    mesh: Mesh
    device: torch.device
    control: dist.ProcessGroup | None = None


@contextmanager
def joined(place: MeetingPlace, tensor: int, pipeline: int, rank: int, device: torch.device) -> Iterator[RankGroup]:
    """Wait until every rank is here; leave the groups at the end."""
    timeout = timedelta(seconds=COLLECTIVE_SECONDS)
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        store=place.store,
        rank=rank,
        world_size=tensor * pipeline,
        timeout=timeout,
        device_id=device if on_gpu else None,
    )
    try:
        control = dist.new_group(backend="gloo", timeout=timeout)
        yield RankGroup(Mesh(tensor, pipeline, rank, _tensor_group(tensor, pipeline, rank, timeout)), device, control)
    finally:
        dist.destroy_process_group()


def _tensor_group(tensor: int, pipeline: int, rank: int, timeout: timedelta) -> dist.ProcessGroup | None:
    """This rank's stage. Every rank must make every group, in the same order."""
    if tensor == 1:
        return None
    stages: list[dist.ProcessGroup] = [
        dist.new_group(list(range(stage * tensor, (stage + 1) * tensor)), timeout=timeout) for stage in range(pipeline)
    ]
    return stages[rank // tensor]
