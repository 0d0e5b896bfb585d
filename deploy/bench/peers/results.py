"""What the runs showed: medians of rounds, and our numbers as ratios to those of the best peer of equal precision."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from deploy.bench.peers.peers import Peer

Better = Literal["more", "less"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of a scenario: where it stands in the summary, and by how much it is multiplied for people."""

    name: str
    path: tuple[str, ...]
    better: Better = "less"
    factor: float = 1.0

    def read(self, summary: Mapping[str, Any]) -> float | None:
        value: Any = summary
        for key in self.path:
            if value is None:
                return None
            value = value[key]
        return float(value) * self.factor


_OUTPUT = Metric("output tokens/s", ("output_rate",), "more")
_SECONDS = Metric("seconds for all", ("seconds",))
_REQUESTS = Metric("requests/s", ("request_rate",), "more")
_TTFT, _TTFT_P99 = (
    Metric("TTFT p50, ms", ("ttft", "p50"), factor=1e3),
    Metric("TTFT p99, ms", ("ttft", "p99"), factor=1e3),
)
_ITL, _ITL_P99 = Metric("ITL p50, ms", ("itl", "p50"), factor=1e3), Metric("ITL p99, ms", ("itl", "p99"), factor=1e3)

METRICS: dict[str, tuple[Metric, ...]] = {
    "offline": (_OUTPUT,),
    "single": (_TTFT, _ITL),
    "prefix": (_SECONDS,),
    "capacity": (_REQUESTS,),
}
_OPEN_LOOP = (_TTFT, _TTFT_P99, _ITL, _ITL_P99)


@dataclass(frozen=True, slots=True)
class Row:
    """One metric of one scenario. `values` are the medians by peer; None where a peer has none."""

    scenario: str
    metric: Metric
    values: dict[str, float | None]


def metrics_of(scenario: str) -> tuple[Metric, ...]:
    return METRICS.get(scenario, _OPEN_LOOP)


def rows(folder: Path, peers: Sequence[Peer], scenarios: Sequence[str]) -> Iterator[Row]:
    for scenario in scenarios:
        for metric in metrics_of(scenario):
            values = {peer.name: _median(metric, summaries(folder, peer, scenario)) for peer in peers}
            yield Row(scenario, metric, values)


def summaries(folder: Path, peer: Peer, scenario: str) -> list[dict[str, Any]]:
    """Of all rounds that were measured. A round in which a request failed does not count."""
    files = sorted(result_folder(folder, peer).glob(f"{scenario}.*.json"))
    found = [json.loads(file.read_text())["summary"] for file in files]
    return [summary for summary in found if not summary["errors"]]


def result_folder(folder: Path, peer: Peer) -> Path:
    return folder / peer.name.replace(" ", "-").replace(",", "")


def ratio(row: Row, peers: Sequence[Peer]) -> float | None:
    """Ours over the best other one's: above 1 is better where more is better, below 1 where less is."""
    ours = next((row.values[peer.name] for peer in peers if peer.environment is None), None)
    theirs = [value for peer in peers if peer.environment is not None and (value := row.values[peer.name]) is not None]
    if ours is None or not theirs:
        return None
    return ours / (max(theirs) if row.metric.better == "more" else min(theirs))


def table(folder: Path, peers: Sequence[Peer], scenarios: Sequence[str]) -> Iterator[str]:
    """Lines of Markdown, for peers of one precision."""
    yield "| scenario | metric | " + " | ".join(peer.name for peer in peers) + " | ours ÷ best other |"
    yield "|---|---" + "|---:" * (len(peers) + 1) + "|"
    for row in rows(folder, peers, scenarios):
        cells = [_cell(row.values[peer.name]) for peer in peers]
        cells.append(_cell(ratio(row, peers)))
        yield f"| {row.scenario} | {row.metric.name} | {' | '.join(cells)} |"


def _median(metric: Metric, found: Sequence[Mapping[str, Any]]) -> float | None:
    values = [value for summary in found if (value := metric.read(summary)) is not None]
    return statistics.median(values) if values else None


def _cell(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.2f}" if value < 10 else f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"
