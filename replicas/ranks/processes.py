"""Ranks as processes on this host: start them beside the engine's, watch them, leave none behind."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict

import torch

from replicas.config import EngineConfig
from replicas.loading.checkpoint import Checkpoint
from replicas.ranks.executor import GroupExecutor
from replicas.ranks.follower import RankSpec
from replicas.ranks.leader import Address, Rendezvous, lead
from replicas.startup import OnStage, build_runner, stage

log = logging.getLogger(__name__)

LOCALHOST = "127.0.0.1"
EXIT_RANK_FAILED = 70
END_SECONDS = 5.0


class RankProcesses:
    """One child process for each spec. They end when they are told to, or when this process does."""

    def __init__(self, specs: Iterable[RankSpec]) -> None:
        self._processes = {spec.rank: _start(spec) for spec in specs}

    @property
    def pids(self) -> dict[int, int]:
        return {rank: process.pid for rank, process in self._processes.items()}

    def check(self) -> None:
        """Raise if one has ended before it joined."""
        for rank, process in self._processes.items():
            if process.poll() is not None:
                raise RuntimeError(
                    f"the process of rank {rank} ended with status {process.returncode} before it joined"
                )

    def close(self) -> None:
        """Wait for their end, and bring it about if it does not come."""
        for process in self._processes.values():
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def kill(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()

    def end_with_engine(self, reason: str, stacks: Mapping[int, str]) -> None:
        """A rank has failed, and a step that waits for it can't be undone: tell where every rank was, and end all of
        them together with this process. Whoever supervises the engine starts another."""
        for rank, text in stacks.items():
            log.critical("%s; rank %d was at\n%s", reason, rank, text)
        self.kill()
        log.critical("%s: the engine ends", reason)
        os._exit(EXIT_RANK_FAILED)


def start_local_ranks(
    checkpoint: Checkpoint, config: EngineConfig, num_blocks: int, on_stage: OnStage
) -> GroupExecutor:
    """Start the other ranks of an engine on this host, and join them as rank 0."""
    share_cores(config)
    with ExitStack() as stack:
        with stage("join the ranks", on_stage):
            rendezvous = Rendezvous(LOCALHOST)
            stack.callback(rendezvous.close)
            processes = RankProcesses(
                RankSpec(rank, rendezvous.address, str(checkpoint.path), config, num_blocks, rank_device(config, rank))
                for rank in range(1, config.num_ranks)
            )
            stack.callback(processes.close)
            device = torch.device(rank_device(config, 0))
            leader = stack.enter_context(lead(rendezvous, config, device, processes.check, processes.end_with_engine))
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


def encode_spec(spec: RankSpec) -> bytes:
    return json.dumps(asdict(spec)).encode()


def decode_spec(data: bytes) -> RankSpec:
    fields = json.loads(data)
    address, config = Address(**fields.pop("address")), EngineConfig(**fields.pop("config"))
    return RankSpec(address=address, config=config, **fields)


def _start(spec: RankSpec) -> subprocess.Popen[bytes]:
    environment = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    command = [sys.executable, "-m", "replicas.ranks"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)
    assert process.stdin is not None
    process.stdin.write(encode_spec(spec))
    process.stdin.close()
    return process
