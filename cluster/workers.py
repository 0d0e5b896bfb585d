"""Ranks as Ray actors in the replica's placement group.

The group has one bundle for each pipeline stage, with room for the stage's tensor-parallel ranks: a bundle lies on one
node, so tensor-parallel traffic never crosses machines, and stages may. The replica and rank 0, which lives in the
replica's engine process, are in bundle 0. Once started, ranks talk to rank 0 directly; Ray carries no step.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from cluster.codec import RankReport
from cluster.engine_client import EngineStartError
from cluster.resources import cpus_per_rank, on_gpu
from replicas.config import EngineConfig

START_SECONDS = 60.0
REACH_SECONDS = 5.0


class RankWorker:
    """The actor of one rank other than 0."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def report(self, device: str) -> RankReport:
        return report_rank(self._rank, device)

    def reach(self, host: str, port: int) -> None:
        """Raise OSError unless rank 0's door can be reached from here."""
        socket.create_connection((host, port), REACH_SECONDS).close()

    def run(self, spec: bytes) -> None:
        """Be the rank until rank 0 says that it is over. When rank 0 is gone, so is this process."""
        import torch

        from parallel.channel import ChannelClosedError
        from replicas.ranks.follower import run_rank
        from replicas.ranks.processes import decode_spec

        decoded = decode_spec(spec)
        if decoded.device.startswith("cuda"):
            decoded = replace(decoded, device="cuda:0")  # an actor sees its own GPU only
        torch.set_num_threads(
            decoded.config.threads or max(1, len(os.sched_getaffinity(0)) // decoded.config.num_ranks)
        )
        try:
            run_rank(decoded)
        except ChannelClosedError:
            os._exit(0)


class RankWorkers:
    """The actors of one replica. `start` is what the engine process asks for; `kill` ends what is left."""

    def __init__(self, config: EngineConfig, group: PlacementGroup) -> None:
        self._config = config
        self._group = group
        self._actors: list[Any] = []
        self.reports: tuple[RankReport, ...] = ()

    async def start(self, specs: Sequence[bytes]) -> None:
        """Place, check and start one actor for each spec. Raises EngineStartError with one sentence."""
        from replicas.ranks.processes import decode_spec

        decoded = [decode_spec(spec) for spec in specs]
        self._actors = [self._place(spec.rank) for spec in decoded]
        device = self._config.device
        asked = [actor.report.remote(device) for actor in self._actors]
        try:
            others = await asyncio.wait_for(asyncio.gather(*asked), START_SECONDS)
        except TimeoutError:
            raise EngineStartError(f"the actors of the ranks did not start within {START_SECONDS:.0f} s") from None
        self.reports = (await asyncio.to_thread(report_rank, 0, device), *others)
        check_reports(self.reports)
        address = decoded[0].address
        for report, actor in zip(others, self._actors, strict=True):
            try:
                await actor.reach.remote(address.host, address.channel_port)
            except OSError as error:
                raise EngineStartError(
                    f"rank {report.rank} on {report.address} cannot reach rank 0 at {address.host} "
                    f"port {address.channel_port}: {error}"
                ) from None
        for spec, actor in zip(specs, self._actors, strict=True):
            actor.run.remote(spec)

    def kill(self) -> None:
        for actor in self._actors:
            ray.kill(actor)
        self._actors = []

    def _place(self, rank: int) -> Any:
        strategy = PlacementGroupSchedulingStrategy(
            self._group, placement_group_bundle_index=rank // self._config.tensor_parallel
        )
        options = {
            "num_cpus": cpus_per_rank(self._config),
            "num_gpus": int(on_gpu(self._config)),
            "scheduling_strategy": strategy,
        }
        return ray.remote(RankWorker).options(**options).remote(rank)


def node_address() -> str:
    """The address by which the cluster knows this node."""
    node_id = ray.get_runtime_context().get_node_id()
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    return next(str(node["NodeManagerAddress"]) for node in nodes if node["NodeID"] == node_id)


def report_rank(rank: int, device: str) -> RankReport:
    """Where this process is and what it has. Raises EngineStartError if it lacks its device."""
    import torch

    name, free = "cpu", os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if device.startswith("cuda"):
        if not torch.cuda.is_available():
            raise EngineStartError(f"rank {rank} sees no GPU, but the configuration says device: {device}")
        name, free = torch.cuda.get_device_name(), torch.cuda.mem_get_info()[0]
    return RankReport(
        rank=rank,
        node=ray.get_runtime_context().get_node_id(),
        address=node_address(),
        device=name,
        backend="nccl" if device.startswith("cuda") else "gloo",
        torch_version=str(torch.__version__),  # a str subclass that msgspec does not know
        free_memory=free,
    )


def check_reports(reports: Sequence[RankReport]) -> None:
    """Raise EngineStartError if these ranks could not work together."""
    first = reports[0]
    for report in reports[1:]:
        if report.torch_version != first.torch_version:
            raise EngineStartError(
                f"rank {report.rank} on {report.address} has torch {report.torch_version}, but rank {first.rank} on "
                f"{first.address} has {first.torch_version}: all nodes need the same version"
            )
        if report.device != first.device:
            raise EngineStartError(
                f"rank {report.rank} on {report.address} has the device {report.device}, but rank {first.rank} on "
                f"{first.address} has {first.device}: all ranks need the same kind"
            )
