"""Joins the ranks of an engine, wherever they run: rank 0 opens the door, has the others started, and leads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Protocol

import torch

from replicas.config import EngineConfig
from replicas.loading.checkpoint import Checkpoint
from replicas.ranks.executor import GroupExecutor
from replicas.ranks.follower import RankSpec
from replicas.ranks.leader import Rendezvous, lead
from replicas.startup import OnStage, build_runner, stage


class StartedRanks(Protocol):
    """The other ranks, as whoever started them sees them."""

    def check(self) -> None:
        """Raise if one has ended before it joined."""

    def close(self) -> None:
        """Wait for their end after they were told to end, and bring it about if it does not come."""

    def end_with_engine(self, reason: str, stacks: Mapping[int, str]) -> None:
        """A rank has failed, and a step that waits for it can't be undone: tell where every rank was, and end all of
        them together with this process. Whoever supervises the engine starts another. Does not return."""


Launch = Callable[[Sequence[RankSpec]], StartedRanks]


def start_ranks(
    checkpoint: Checkpoint, config: EngineConfig, num_blocks: int, on_stage: OnStage, host: str, launch: Launch
) -> GroupExecutor:
    """Have the other ranks started by `launch`, and join them as rank 0 at this host's address."""
    share_cores(config)
    with ExitStack() as stack:
        with stage("join the ranks", on_stage):
            rendezvous = Rendezvous(host)
            stack.callback(rendezvous.close)
            path, address = str(checkpoint.path), rendezvous.address
            ranks = launch(
                [
                    RankSpec(rank, address, path, config, num_blocks, rank_device(config, rank))
                    for rank in range(1, config.num_ranks)
                ]
            )
            stack.callback(ranks.close)
            device = torch.device(rank_device(config, 0))
            leader = stack.enter_context(lead(rendezvous, config, device, ranks.check, ranks.end_with_engine))
        runner = build_runner(checkpoint, config, leader.group, num_blocks, on_stage)
        with stage("await the other ranks", on_stage):
            leader.await_ready()
        return GroupExecutor(runner, leader, stack.pop_all().close)


def rank_device(config: EngineConfig, rank: int) -> str:
    """The device of a rank on this host: GPUs are numbered from the configured one on."""
    device = torch.device(config.device)
    return config.device if device.type == "cpu" else f"{device.type}:{(device.index or 0) + rank}"


def share_cores(config: EngineConfig) -> None:
    """Leave each rank its part of the cores: more threads than cores spend their time waiting for each other."""
    if torch.device(config.device).type == "cpu":
        torch.set_num_threads(max(1, torch.get_num_threads() // config.num_ranks))
