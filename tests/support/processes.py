"""Finding this test run's own processes, and nobody else's."""

from __future__ import annotations

import os


def descendants(words: str) -> list[int]:
    """Processes below this one that were started with, or call themselves by, these words."""
    parents, commands = {}, {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            with open(f"/proc/{pid}/stat") as stat, open(f"/proc/{pid}/cmdline") as command:
                parents[pid] = int(stat.read().rsplit(")", 1)[1].split()[1])
                commands[pid] = command.read().replace("\0", " ")
        except OSError:
            continue
    return sorted(pid for pid, command in commands.items() if words in command and _is_ours(pid, parents))


def _is_ours(pid: int, parents: dict[int, int]) -> bool:
    while pid in parents:
        pid = parents[pid]
        if pid == os.getpid():
            return True
    return False
