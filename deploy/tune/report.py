"""What the command tells a person, and the same as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from deploy.bench.serve.measure import Spread
from deploy.tune.settings import DEFAULT, setting
from deploy.tune.tuning import Tried, Tuned


def print_tuned(tuned: Tuned) -> None:
    console = Console(highlight=False, emoji=False, soft_wrap=True)
    default = setting(DEFAULT)
    for title, of in (("default", default), ("best", tuned.setting)):
        if title == "default" or of != default:
            console.print(f"[bold]{title}[/]  {of}")
            console.print(_curve(tuned.curve(of)))
    console.print(verdict(tuned))


def verdict(tuned: Tuned) -> str:
    held = f"holds {tuned.rate:.3g} requests/s within the objectives"
    if tuned.setting == setting(DEFAULT):
        return f"The default setting is the best of those that were tried: it {held}."
    before = "none of the rates that were tried" if tuned.default_rate is None else f"{tuned.default_rate:.3g}"
    return f"The best setting, {tuned.setting}, {held}; the default holds {before}."


def told(tried: Tried, most: int) -> str:
    """One line for each run, while the search goes on."""
    kept = "kept" if tried.holds else "broke"
    ttft, itl = _ms(tried.summary.ttft), _ms(tried.summary.itl)
    return (
        f"run {tried.number} of at most {most}: {tried.setting}, {tried.rate:.3g} requests/s: {kept} "
        f"(p99: TTFT {ttft} ms, ITL {itl} ms)"
    )


def as_json(tuned: Tuned, asked: dict[str, Any]) -> dict[str, Any]:
    return {
        "asked": asked,
        "best": {**asdict(tuned.setting), "rate": tuned.rate},
        "default_rate": tuned.default_rate,
        "runs": [
            {**asdict(tried.setting), "rate": tried.rate, "holds": tried.holds, "summary": asdict(tried.summary)}
            for tried in tuned.runs
        ],
    }


def _curve(runs: Sequence[Tried]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("requests/s", "goodput/s", "within", "TTFT p50", "p99", "ITL p50", "p99", "output tokens/s"):
        table.add_column(column, justify="right")
    for tried in runs:
        table.add_row(*_cells(tried), style=None if tried.holds else "dim")
    return table


def _cells(tried: Tried) -> list[str]:
    summary = tried.summary
    assert summary.goodput is not None, "a tuning has objectives"
    return [
        f"{tried.rate:.3g}",
        f"{summary.goodput.rate:.3g}",
        f"{summary.goodput.share:.0%}",
        _ms(summary.ttft, "p50"),
        _ms(summary.ttft),
        _ms(summary.itl, "p50"),
        _ms(summary.itl),
        f"{summary.output_rate:,.1f}",
    ]


def _ms(spread: Spread | None, which: str = "p99") -> str:
    return "–" if spread is None else f"{getattr(spread, which) * 1e3:,.1f}"
