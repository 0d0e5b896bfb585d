"""Measures one server after another, and prints what came out. Rounds go around all servers, so that none has the
machine's better hour."""

from __future__ import annotations

import argparse
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
from deploy.bench.peers.servers import free_port, install, requantize, running
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
    seconds: int
    patience: float
    quick: bool

    def results(self, peer: Peer) -> Path:
        return result_folder(self.results_of_all, peer)

    @property
    def results_of_all(self) -> Path:
        return self.folder / ("quick" if self.quick else "results")


def main() -> None:
    asked = _asked()
    try:
        places = {peer.name: _prepared(peer, asked) for peer in asked.peers}
    except UserError as error:
        sys.exit(f"error: {error}")
    for number in range(1, asked.rounds + 1):
        for peer in asked.peers:
            _measure(peer, places[peer.name], number, asked)
    for line in _report(asked):
        print(line)


def _measure(peer: Peer, place: Place, number: int, asked: Asked) -> None:
    """What a server does not manage is told and left out: the others are measured all the same."""
    title = f"round {number} of {asked.rounds}, {peer.name}"
    results, variables = asked.results(peer), peer.environment_variables(asked.threads)
    port = free_port()
    print(f"{title}: starting", flush=True)
    try:
        with running(peer.command(place, port), variables, port, results / "server.log", asked.patience) as url:
            for scenario in _scenarios(peer, asked):
                print(f"{title}: {scenario.name}", flush=True)
                _load(url, scenario.small() if asked.quick else scenario, results / f"{scenario.name}.{number}.json")
    except UserError as error:
        print(f"{title}: {error}", flush=True)


def _scenarios(peer: Peer, asked: Asked) -> Iterator[Scenario]:
    """The rates of the open loops follow from the capacity, once that is measured."""
    yield from CLOSED
    rates = [summary["request_rate"] for summary in summaries(asked.results_of_all, peer, CAPACITY.name)]
    if rates:
        yield from open_loops(rates[-1], asked.seconds)


def _load(url: str, scenario: Scenario, file: Path) -> None:
    """By a generator in a process of its own. Where it fails, there is no result of this round."""
    file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "deploy.cli", "bench", "serve", url, *scenario.arguments]
    subprocess.run([*command, "--json", str(file), "--quiet"], check=False)


def _prepared(peer: Peer, asked: Asked) -> Place:
    """With everything installed, converted and written that the peer needs."""
    asked.results(peer).mkdir(parents=True, exist_ok=True)
    file, folder = fetch(MODEL), asked.folder / "model"
    if not (folder / "config.json").exists():
        convert(file, folder)
    python = Path(sys.executable) if peer.environment is None else install(peer.environment, asked.folder)
    if peer.requantized:
        file = requantize(python, file, asked.folder / "model-Q4_0.gguf")
    configuration = asked.results(peer) / "mobula.yaml"
    engine = {**peer.settings, "threads": asked.threads, "kv_cache_memory": f"{KV_GIGABYTES}GiB"}
    models = [{"id": MODEL, "source": str(file), "engine": engine}]
    configuration.write_text(yaml.safe_dump({"models": models}, sort_keys=False))
    return Place(python, file, folder, configuration, asked.threads)


def _report(asked: Asked) -> Iterator[str]:
    for precision, group in groupby(PEERS, key=lambda peer: peer.precision):
        peers = [peer for peer in group if asked.results(peer).exists()]
        if peers:
            names = [scenario.name for scenario in (*CLOSED, *open_loops(1.0, asked.seconds))]
            yield from ("", precision, "", *table(asked.results_of_all, peers, names))


def _asked() -> Asked:
    parser = argparse.ArgumentParser(prog="python -m deploy.bench.peers", description=__doc__)
    parser.add_argument("folder", type=Path, help="for environments, model and results; outside the repository")
    parser.add_argument("--only", metavar="A|B", help="names of peers", default="|".join(peer.name for peer in PEERS))
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="that each server computes with"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=60, help="that each open loop lasts")
    parser.add_argument("--patience", type=float, default=600.0, help="seconds until a server must answer")
    parser.add_argument("--quick", action="store_true", help="a few requests, to see that all works")
    options = parser.parse_args()
    folder, names = options.folder.resolve(), options.only.split("|")
    if folder.is_relative_to(REPOSITORY):
        parser.error(f"{folder} lies within the repository: name a folder outside")
    if unknown := sorted(set(names) - {peer.name for peer in PEERS}):
        parser.error(f"{unknown[0]!r} is no peer: there are {', '.join(peer.name for peer in PEERS)}")
    chosen = [peer for peer in PEERS if peer.name in names]
    return Asked(folder, chosen, options.threads, options.rounds, options.seconds, options.patience, options.quick)


if __name__ == "__main__":
    main()
