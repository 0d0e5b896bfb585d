"""The load of `mobula bench router`, and its clock, for any index of KV blocks. Standard library only: another system's
index may live in an environment of its own.

Blocks come in runs, each stored by one to three replicas; beside them are long prompts whose holders end in a few
places, as they do where conversations part. What must be made of keys before an index can take them (lists, messages)
is made before the clock starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, Protocol

KEY_BYTES = 16
RUN_BLOCKS = 128
BATCH = 512  # events that are prepared at once
PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Load:
    """`prompts` of `prompt_blocks`, the holders of each of which end in `depths` places; each question is asked
    `matches` times."""

    replicas: int = 1000
    blocks: int = 10_000_000
    prompt_blocks: int = 8192
    depths: int = 16
    prompts: int = 32
    matches: int = 2000
    seed: int = 1


class Index(Protocol):
    """An index under test. `raw` is keys, end to end, `prepared` whatever the index makes of it."""

    def stored(self, replica: int, raw: bytes) -> Any: ...
    def removed(self, replica: int, raw: bytes) -> Any: ...
    def apply(self, prepared: Sequence[Any]) -> None: ...
    def prompt(self, raw: bytes) -> Any: ...
    def match(self, prepared: Any) -> int: ...
    def forget(self, replica: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Latency:
    """Microseconds of a match by the clock, the same of CPU time, and how many replicas the last one found."""

    p50: float
    p99: float
    max: float
    cpu_p50: float
    cpu_p99: float
    found: int


@dataclass(frozen=True, slots=True)
class Rate:
    """Blocks a second by the clock, and a second of CPU time: these differ where a machine is shared."""

    per_second: float
    per_cpu_second: float


@dataclass(frozen=True, slots=True)
class Figures:
    """A prompt's holders: `few`, one for each depth; as many that are `cut` short, since ends were evicted; `all`
    replicas; `worst`, all, each with a depth of its own; or none, `unknown`."""

    bytes_per_block: float
    stored: Rate
    stored_singly: Rate
    removed: Rate
    match_few: Latency
    match_cut: Latency
    match_all: Latency
    match_worst: Latency
    match_unknown: Latency
    forget_ms: float


def measure(index: Index, load: Load) -> Figures:
    """Fill the index, ask it, and empty a part of it."""
    random = Random(load.seed + 1)
    before = resident_bytes()
    stored = _rate(index, (index.stored(*run) for run in _runs(load, load.blocks)), RUN_BLOCKS)
    size = (resident_bytes() - before) / load.blocks
    few = [_add_prompt(index, load, random, load.depths, load.depths) for _ in range(load.prompts)]
    cut = [_add_prompt(index, load, random, load.depths, load.depths, cut=True) for _ in range(load.prompts)]
    every = [_add_prompt(index, load, random, load.replicas, load.depths) for _ in range(2)]
    worst = [_add_prompt(index, load, random, load.replicas, load.replicas)]
    unknown = [random.randbytes(KEY_BYTES * load.prompt_blocks)]
    return Figures(
        bytes_per_block=size,
        stored=stored,
        match_few=_latency(index, few, load.matches),
        match_cut=_latency(index, cut, load.matches),
        match_all=_latency(index, every, load.matches),
        match_worst=_latency(index, worst, load.matches),
        match_unknown=_latency(index, unknown, load.matches),
        stored_singly=_rate(index, (index.stored(*block) for block in _singles(load)), 1),
        removed=_rate(index, (index.removed(*run) for run in _evictions(load)), RUN_BLOCKS),
        forget_ms=1e3 * _timed(partial(index.forget, 0))[0],
    )


def split(raw: bytes) -> list[bytes]:
    """Keys that were put end to end."""
    return [raw[start : start + KEY_BYTES] for start in range(0, len(raw), KEY_BYTES)]


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


def _runs(load: Load, blocks: int) -> Iterator[tuple[int, bytes]]:
    random = Random(load.seed)
    for _ in range(blocks // RUN_BLOCKS):
        raw = random.randbytes(KEY_BYTES * RUN_BLOCKS)
        for replica in random.sample(range(load.replicas), random.choice((1, 1, 2, 3))):
            yield replica, raw


def _singles(load: Load) -> Iterator[tuple[int, bytes]]:
    """Blocks that are filled one by one, as tokens are generated."""
    random = Random(load.seed + 2)
    for _ in range(load.blocks // RUN_BLOCKS):
        yield random.randrange(load.replicas), random.randbytes(KEY_BYTES)


def _evictions(load: Load) -> Iterator[tuple[int, bytes]]:
    """A tenth of the runs goes again, each from its end."""
    for replica, raw in _runs(load, load.blocks // 10):
        yield replica, b"".join(reversed(split(raw)))


def _add_prompt(index: Index, load: Load, random: Random, holders: int, places: int, cut: bool = False) -> bytes:
    keys = split(random.randbytes(KEY_BYTES * load.prompt_blocks))
    depths = random.sample(range(1, load.prompt_blocks), places)
    for number, replica in enumerate(random.sample(range(load.replicas), holders)):
        depth = depths[number % places]
        index.apply([index.stored(replica, b"".join(keys if cut else keys[:depth]))])
        if cut:
            index.apply([index.removed(replica, b"".join(keys[: depth - 1 : -1]))])
    return b"".join(keys)


def _rate(index: Index, events: Iterator[Any], blocks: int) -> Rate:
    seconds, cpu_seconds, count = 0.0, 0.0, 0
    while batch := list(islice(events, BATCH)):
        taken = _timed(partial(index.apply, batch))
        seconds, cpu_seconds, count = seconds + taken[0], cpu_seconds + taken[1], count + len(batch)
    return Rate(blocks * count / seconds, blocks * count / cpu_seconds)


def _latency(index: Index, prompts: Sequence[bytes], matches: int) -> Latency:
    times, cpu_times, found = [], [], 0
    for number in range(matches):
        prompt = index.prompt(prompts[number % len(prompts)])
        cpu_started, started = time.process_time(), time.perf_counter()
        found = index.match(prompt)
        times.append(1e6 * (time.perf_counter() - started))
        cpu_times.append(1e6 * (time.process_time() - cpu_started))
    times.sort()
    cpu_times.sort()
    half, most = matches // 2, int(matches * 0.99)
    return Latency(times[half], times[most], times[-1], cpu_times[half], cpu_times[most], found)


def _timed(call: Callable[[], object]) -> tuple[float, float]:
    """Seconds by the clock, and of CPU time on all threads."""
    cpu_started, started = time.process_time(), time.perf_counter()
    call()
    return time.perf_counter() - started, time.process_time() - cpu_started
