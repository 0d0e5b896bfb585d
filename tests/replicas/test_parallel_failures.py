"""A rank that dies or stops ends the whole engine at once, which says why and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from replicas.ranks.processes import EXIT_RANK_FAILED
from tests.support.checkpoints import TINY_CONFIGS, write_tiny

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    write_tiny(folder, TINY_CONFIGS["llama"])
    return folder


@contextmanager
def busy_engine(folder: Path, tensor: int, pipeline: int) -> Iterator[subprocess.Popen[str]]:
    """An engine process in the middle of its steps."""
    command = [sys.executable, "-m", "tests.support.busy_engine", str(folder), str(tensor), str(pipeline)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def children(process: subprocess.Popen[str]) -> list[int]:
    """The other ranks, in their order."""
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_until_gone(pids: list[int], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not all(map(gone, pids)):
        assert time.monotonic() < deadline, "a rank outlived its engine"
        time.sleep(0.02)


def test_a_killed_rank_ends_the_engine_within_a_second(folder):
    with busy_engine(folder, tensor=1, pipeline=2) as process:
        ranks = children(process)
        os.kill(ranks[0], signal.SIGKILL)
        started = time.monotonic()
        _, errors = process.communicate(timeout=10)
        assert time.monotonic() - started < 1.5
        assert process.returncode == EXIT_RANK_FAILED
        assert "rank 1 has died" in errors
        wait_until_gone(ranks, 1)


def test_a_stopped_rank_ends_the_engine_within_five_seconds_with_the_stacks_of_all_others(folder):
    with busy_engine(folder, tensor=2, pipeline=2) as process:
        ranks = children(process)
        os.kill(ranks[1], signal.SIGSTOP)
        started = time.monotonic()
        _, errors = process.communicate(timeout=20)
        assert time.monotonic() - started < 5
        assert process.returncode == EXIT_RANK_FAILED
        assert "rank 2 has been silent" in errors
        for rank in (0, 1, 3):
            stack = errors.split(f"rank {rank} was at\n")[1].split(" was at\n")[0]
            assert "runner.py" in stack or "follower.py" in stack, stack
        wait_until_gone(ranks, 1)


def test_ranks_end_when_the_engine_is_killed(folder):
    with busy_engine(folder, tensor=2, pipeline=1) as process:
        ranks = children(process)
        process.kill()
        process.wait()
        wait_until_gone(ranks, 3)
