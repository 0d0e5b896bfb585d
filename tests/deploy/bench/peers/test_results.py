"""Medians and ratios over result files whose numbers are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from deploy.bench.peers.peers import PEERS, Environment, Peer, Place
from deploy.bench.peers.results import ratio, result_folder, rows, summaries, table


def no_command(_: Place, port: int) -> list[str]:
    return []


OURS = Peer("ours, 4 bits", "4 bits", None, no_command)
FAST = Peer("fast", "4 bits", Environment("fast", ()), no_command)
SLOW = Peer("slow", "4 bits", Environment("slow", ()), no_command)
GROUP = (OURS, FAST, SLOW)


def write(
    folder: Path, peer: Peer, scenario: str, number: int, errors: dict[str, int] | None = None, **summary: Any
) -> None:
    results = result_folder(folder, peer)
    results.mkdir(parents=True, exist_ok=True)
    content = {"summary": {"errors": errors or {}, **summary}}
    (results / f"{scenario}.{number}.json").write_text(json.dumps(content))


def test_ours_is_held_against_the_best_of_the_others(tmp_path: Path) -> None:
    for peer, rates in ((OURS, (30, 10, 20)), (FAST, (8, 10, 12)), (SLOW, (1, 2, 3))):
        for number, rate in enumerate(rates):
            write(tmp_path, peer, "offline", number, output_rate=rate)
    (row,) = rows(tmp_path, GROUP, ["offline"])
    assert row.values == {"ours, 4 bits": 20, "fast": 10, "slow": 2}
    assert ratio(row, GROUP) == 2.0


def test_where_less_is_better_the_best_is_the_least(tmp_path: Path) -> None:
    for peer, seconds in ((OURS, 0.010), (FAST, 0.020), (SLOW, 0.5)):
        spread = {"p50": seconds, "p99": 2 * seconds}
        write(tmp_path, peer, "rate-2", 1, ttft=spread, itl=spread)
    found = list(rows(tmp_path, GROUP, ["rate-2"]))
    assert [row.metric.name for row in found] == ["TTFT p50, ms", "TTFT p99, ms", "ITL p50, ms", "ITL p99, ms"]
    assert [ratio(row, GROUP) for row in found] == [0.5] * 4


def test_a_round_in_which_requests_failed_does_not_count(tmp_path: Path) -> None:
    write(tmp_path, FAST, "prefix", 1, errors={"status 500": 1}, seconds=1.0)
    write(tmp_path, FAST, "prefix", 2, seconds=4.0)
    assert [summary["seconds"] for summary in summaries(tmp_path, FAST, "prefix")] == [4.0]


def test_what_was_not_measured_is_left_open(tmp_path: Path) -> None:
    write(tmp_path, FAST, "single", 1, ttft={"p50": 0.1}, itl=None)
    lines = list(table(tmp_path, GROUP, ["single"]))
    assert lines[0] == "| scenario | metric | ours, 4 bits | fast | slow | ours ÷ best other |"
    assert lines[2:] == [
        "| single | TTFT p50, ms | – | 100.0 | – | – |",
        "| single | ITL p50, ms | – | – | – | – |",
    ]


def test_every_peer_has_results_of_its_own(tmp_path: Path) -> None:
    assert len({result_folder(tmp_path, peer) for peer in PEERS}) == len(PEERS)
