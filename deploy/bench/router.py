"""`mobula bench router`: what the prefix index costs, beside Dynamo's where its package is at hand."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import deploy
from cluster.router.index import PrefixIndex
from deploy.bench.router_load import Figures, Latency, Load, Rate, measure, split
from deploy.errors import UserError

SPARE = 11 / 10  # room for the prompts that come to the blocks of a load


class OurIndex:
    """`PrefixIndex` behind the interface of the load."""

    def __init__(self, replicas: int, max_blocks: int) -> None:
        self._names = [f"SERVE_REPLICA::model#Replica#{number:08x}" for number in range(replicas)]
        self._index = PrefixIndex(max_blocks)
        for name in self._names:
            self._index.add_holder(name)

    def stored(self, replica: int, raw: bytes) -> tuple[Any, ...]:
        return self._index.store, self._names[replica], split(raw)

    def removed(self, replica: int, raw: bytes) -> tuple[Any, ...]:
        return self._index.remove, self._names[replica], split(raw)

    def apply(self, prepared: Sequence[tuple[Any, ...]]) -> None:
        for change, name, keys in prepared:
            change(name, keys)

    def prompt(self, raw: bytes) -> list[bytes]:
        return split(raw)

    def match(self, prepared: list[bytes]) -> int:
        return len(self._index.match(prepared))

    def forget(self, replica: int) -> None:
        self._index.forget(self._names[replica])


@dataclass(frozen=True, slots=True)
class Result:
    """`dynamo` is absent where its package is."""

    load: Load
    ours: Figures
    dynamo: Figures | None


def run(load: Load, dynamo_python: Path | None) -> Result:
    """Measure both under the same load, one after the other."""
    dynamo = _measure_dynamo(dynamo_python, load) if dynamo_python else None
    return Result(load, measure(OurIndex(load.replicas, int(load.blocks * SPARE)), load), dynamo)


def as_json(result: Result) -> dict[str, Any]:
    return asdict(result)


def lines(result: Result) -> Iterator[str]:
    """The report as Markdown."""
    load = result.load
    yield f"{load.replicas:,} replicas, {load.blocks:,} blocks, prompts of {load.prompt_blocks:,} blocks:"
    yield ""
    yield "| | ours | Dynamo's RadixTree |"
    yield "|---|---|---|"
    theirs = _cells(result.dynamo) if result.dynamo else [""] * len(_LABELS)
    for label, ours, other in zip(_LABELS, _cells(result.ours), theirs, strict=True):
        yield f"| {label.format(depths=load.depths, replicas=load.replicas)} | {ours} | {other} |"


_LABELS = (
    "memory, bytes a block",
    "stored in runs, blocks/s (of CPU time)",
    "stored singly, blocks/s",
    "removed, blocks/s",
    "match, {depths} holders at {depths} depths, µs p50 / p99 / max (p50 / p99 of CPU time)",
    "match, the same after evictions",
    "match, {replicas} holders at {depths} depths",
    "match, {replicas} holders at {replicas} depths",
    "match, no holder",
    "forget a replica, ms",
)


def _cells(figures: Figures) -> list[str]:
    return [
        f"{figures.bytes_per_block:.0f}",
        *map(_rate, (figures.stored, figures.stored_singly, figures.removed)),
        *map(
            _latency,
            (figures.match_few, figures.match_cut, figures.match_all, figures.match_worst, figures.match_unknown),
        ),
        f"{figures.forget_ms:.1f}",
    ]


def _rate(rate: Rate) -> str:
    return f"{rate.per_second:,.0f} ({rate.per_cpu_second:,.0f})"


def _latency(latency: Latency) -> str:
    clock = f"{latency.p50:,.0f} / {latency.p99:,.0f} / {latency.max:,.0f}"
    return f"{clock} ({latency.cpu_p50:,.0f} / {latency.cpu_p99:,.0f})"


def _measure_dynamo(python: Path, load: Load) -> Figures:
    root = Path(deploy.__file__).parents[1]
    try:
        done = subprocess.run(
            [python, "-m", "deploy.bench.router_dynamo"],
            input=json.dumps(asdict(load)),
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(root)},
        )
    except OSError as error:
        raise UserError(f"--dynamo-python {python} cannot be run: {error.strerror}") from error
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        raise UserError(f"--dynamo-python {python} could not measure ai-dynamo-runtime: {reason[0]}")
    return _figures(json.loads(done.stdout))


def _figures(raw: dict[str, Any]) -> Figures:
    kinds = {name: Rate if "per_second" in value else Latency for name, value in raw.items() if isinstance(value, dict)}
    return Figures(**{**raw, **{name: kind(**raw[name]) for name, kind in kinds.items()}})
