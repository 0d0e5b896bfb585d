"""Ranks as processes on this host: start them beside the engine's, watch them, leave none behind."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import torch

from replicas.config import EngineConfig
from replicas.ranks.follower import RankSpec
from replicas.ranks.leader import Address

log = logging.getLogger(__name__)

EXIT_RANK_FAILED = 70
END_SECONDS = 5.0


class RankProcesses:
    """One child process for each spec. They end when they are told to, or when this process does."""

    def __init__(self, specs: Sequence[RankSpec]) -> None:
        self._processes = {spec.rank: _start(spec) for spec in specs}

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
        log_stacks(reason, stacks)
        self.kill()
        os._exit(EXIT_RANK_FAILED)


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


def log_stacks(reason: str, stacks: Mapping[int, str]) -> None:
    """Where every rank was when the group failed."""
    for rank, text in stacks.items():
        log.critical("%s; rank %d was at\n%s", reason, rank, text)
    log.critical("%s: the engine ends", reason)
