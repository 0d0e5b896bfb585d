"""Measures one server after another, and prints what came out."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import yaml

from deploy.bench.peers.conversion import convert
from deploy.bench.peers.peers import KV_GIGABYTES, MODEL, PEERS, Peer, Place
from deploy.bench.peers.results import result_folder, summaries, table
from deploy.bench.peers.scenarios import CAPACITY, CLOSED, Scenario, open_loops
from deploy.bench.peers.servers import free_port, install, running
from deploy.catalog import fetch
from deploy.errors import UserError

REPOSITORY = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True)
class Asked:
    """`quick` sends a few requests only, to see that everything works."""

    folder: Path
    peers: Sequence[Peer]
    threads: int
    rounds: int
    patience: float
    quick: bool


def main() -> None:
    asked = _asked()
    try:
        failed = [peer.name for peer in asked.peers if not _measured(peer, asked)]
    except UserError as error:
        sys.exit(f"error: {error}")
    for line in _report(asked):
        print(line)
    if failed:
        sys.exit(f"error: not measured: {', '.join(failed)}")


def _measured(peer: Peer, asked: Asked) -> bool:
    """Whether it could be: one that does not start does not stop the others from being measured."""
    print(f"{peer.name}: starting", flush=True)
    results = result_folder(asked.folder, peer)
    results.mkdir(parents=True, exist_ok=True)
    place = _place(peer, asked)
    variables = peer.environment_variables(asked.threads)
    try:
        with running(peer.command(place), variables, place.port, results / "server.log", asked.patience) as url:
            for scenario in _scenarios(peer, asked):
                for number in range(asked.rounds):
                    print(f"{peer.name}: {scenario.name}, round {number + 1}", flush=True)
                    _load(url, scenario, results / f"{scenario.name}.{number + 1}.json", asked.quick)
    except UserError as error:
        print(f"{peer.name}: {error}", flush=True)
        return False
    return True


def _scenarios(peer: Peer, asked: Asked) -> Iterator[Scenario]:
    """The rates of the open loops follow from the capacity, once that is measured."""
    yield from CLOSED
    rates = [summary["request_rate"] for summary in summaries(asked.folder, peer, CAPACITY.name)]
    if rates:
        yield from open_loops(sorted(rates)[len(rates) // 2])


def _load(url: str, scenario: Scenario, file: Path, quick: bool) -> None:
    """By a generator in a process of its own."""
    options = [*scenario.options, "--json", str(file), "--quiet"]
    if quick:
        options = [
            *_without_counts(scenario.options),
            "--requests",
            "4",
            "--warmup",
            "0",
            "--json",
            str(file),
            "--quiet",
        ]
    command = [sys.executable, "-m", "deploy.cli", "bench", "serve", url, "--timeout", "10min", *options]
    if subprocess.run(command, check=False).returncode != 0:
        raise UserError(f"the load {scenario.name} could not be sent")


def _without_counts(options: Sequence[str]) -> list[str]:
    pairs = zip(options[::2], options[1::2], strict=True)
    return [
        word for name, value in pairs if name not in ("--requests", "--duration", "--warmup") for word in (name, value)
    ]


def _place(peer: Peer, asked: Asked) -> Place:
    folder = asked.folder / "model"
    file = fetch(MODEL)
    if not (folder / "config.json").exists():
        convert(file, folder)
    python = Path(sys.executable) if peer.environment is None else install(peer.environment, asked.folder)
    configuration = asked.folder / f"{result_folder(asked.folder, peer).name}.yaml"
    engine = {**peer.settings, "threads": asked.threads, "kv_cache_memory": f"{KV_GIGABYTES}GiB"}
    models = [{"id": MODEL, "source": str(file), "engine": engine}]
    configuration.write_text(yaml.safe_dump({"models": models}, sort_keys=False))
    return Place(python, file, folder, configuration, free_port(), asked.threads)


def _report(asked: Asked) -> Iterator[str]:
    for precision, group in groupby(PEERS, key=lambda peer: peer.precision):
        peers = [peer for peer in group if result_folder(asked.folder, peer).exists()]
        if peers:
            names = [scenario.name for scenario in (*CLOSED, *open_loops(1.0))]
            yield from ("", precision, "", *table(asked.folder, peers, names))


def _asked() -> Asked:
    parser = argparse.ArgumentParser(prog="python -m deploy.bench.peers", description=__doc__)
    parser.add_argument("folder", type=Path, help="for environments, model and results; outside the repository")
    parser.add_argument("--only", help="names of peers with | between; all without", default="")
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="that each server computes with"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--patience", type=float, default=600.0, help="seconds until a server must answer")
    parser.add_argument("--quick", action="store_true", help="a few requests, to see that all works")
    options = parser.parse_args()
    folder = options.folder.resolve()
    if folder.is_relative_to(REPOSITORY):
        parser.error(f"{folder} lies within the repository: name a folder outside")
    names = options.only.split("|") if options.only else [peer.name for peer in PEERS]
    if unknown := sorted(set(names) - {peer.name for peer in PEERS}):
        parser.error(f"{unknown[0]!r} is no peer: there are {json.dumps([peer.name for peer in PEERS])}")
    chosen = [peer for peer in PEERS if peer.name in names]
    return Asked(folder, chosen, options.threads, options.rounds, options.patience, options.quick)


if __name__ == "__main__":
    main()
