"""Finding this test run's own processes, and nobody else's."""

from __future__ import annotations

import os
import socket


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as stat:
        return int(stat.read().rsplit(")", 1)[1].split()[1])


def ray_processes(words: str) -> list[int]:
    """Processes of this run's Ray cluster that were started with, or call themselves by, these words."""
    parents, commands = {}, {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            with open(f"/proc/{pid}/stat") as stat, open(f"/proc/{pid}/cmdline") as command:
                parents[pid] = int(stat.read().rsplit(")", 1)[1].split()[1])
                commands[pid] = command.read().replace("\0", " ")
        except OSError:
            continue

    def ancestors(pid: int) -> list[int]:
        line = []
        while (pid := parents.get(pid, 0)) in parents:
            line.append(pid)
        return line

    def is_ours(pid: int) -> bool:
        above = ancestors(pid)
        return os.getpid() in above and any("raylet" in commands[ancestor] for ancestor in above)

    return sorted(pid for pid, command in commands.items() if words in command and is_ours(pid))
