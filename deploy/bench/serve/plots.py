"""The results as pictures: where time goes in one run, and how latency grows with throughput."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from deploy.bench.serve.outcome import Outcome, itls, ttfts, whole
from deploy.bench.serve.session import Step
from deploy.bench.serve.slo import Slo
from deploy.bench.serve.sweep import highest_held

BLUE, ORANGE, RED, GREY = "#2b6ca3", "#e58a2b", "#c0392b", "#7d838c"
STYLE: dict[Any, Any] = {
    "figure.dpi": 150,
    "figure.constrained_layout.use": True,
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.labelcolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#c9cdd2",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#eceef0",
    "xtick.color": GREY,
    "ytick.color": GREY,
    "legend.frameon": False,
    "legend.borderaxespad": 0.2,
    "legend.handlelength": 1.4,
    "legend.columnspacing": 1.2,
}
BINS = 80


def plot_curve(file: Path, steps: Sequence[Step], slo: Slo) -> None:
    """Latency against the throughput that was reached, one point for each rate of a sweep."""
    with _figure(file, 1, 2, (9, 3.6)) as (_, (left, right)):
        for axes, name, limit in ((left, "TTFT", slo.ttft), (right, "ITL", slo.itl)):
            _plot_percentiles(axes, name, steps)
            axes.set_yscale("log")
            for axis_formatter in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
                axis_formatter(FuncFormatter(_plain_number))
            axes.margins(y=0.12)
            axes.set_xlim(left=0)
            axes.set_title(name)
            axes.set_xlabel("output tokens/s  (open circles: objectives broken)")
            axes.set_ylabel("ms")
            _mark_limit(axes, limit)
            _legend(axes)


def plot_itl(file: Path, runs: Mapping[str, Sequence[Outcome]], slo: Slo) -> None:
    """How the gaps between events are distributed, for each server."""
    gaps = {name: 1e3 * np.array(itls(whole(outcomes)), float) for name, outcomes in runs.items()}
    gaps = {name: each for name, each in gaps.items() if each.size}
    if not gaps:
        return
    everything = np.concatenate(list(gaps.values()))
    p1, p50 = np.percentile(everything, (1, 50)).tolist()
    low = max(
        0.001, p1 / 2, p50 / 30
    )  # shorter ones, such as those of events that arrived together, are in the first bar
    bins = np.geomspace(low, max(2 * low, float(everything.max()) * 1.01), BINS).tolist()
    with _figure(file, 1, 1, (7.5, 3.6)) as (_, (axes,)):
        for (name, each), color in zip(gaps.items(), (BLUE, ORANGE), strict=False):
            p50, p99 = np.percentile(each, (50, 99)).tolist()
            label = f"{name} p50 {p50:.3g}, p99 {p99:.3g} ms".strip()
            clipped = np.clip(each, low, None)
            axes.hist(clipped, bins, histtype="stepfilled", color=color, alpha=0.3, label=label)
            axes.hist(clipped, bins, histtype="step", color=color, linewidth=1.2)
            axes.axvline(p50, color=color, linewidth=1)
            axes.axvline(p99, color=color, linewidth=1, linestyle=":")
        if slo.itl is not None:
            axes.axvline(slo.itl * 1e3, color=RED, linewidth=1, linestyle="--", label=f"objective {slo.itl * 1e3:g} ms")
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(_plain_number))
        axes.xaxis.set_minor_formatter(FuncFormatter(_plain_number))
        axes.set_title("Inter-token latency")
        axes.set_xlabel("ms between events  (line: p50, dotted: p99)")
        axes.set_ylabel("gaps")
        _legend(axes)


def plot_timeline(file: Path, outcomes: Sequence[Outcome], slo: Slo) -> None:
    """What happened when: each request's first token, the requests under way, and the tokens a second."""
    zero = min(outcome.scheduled for outcome in outcomes)
    end = max(outcome.ended for outcome in outcomes) - zero
    with _figure(file, 3, 1, (9, 6), sharex=True) as (_, (first, under_way, tokens)):
        _plot_first_tokens(first, outcomes, zero, slo)
        times, counts = _under_way(outcomes, zero)
        under_way.fill_between(times, counts, step="post", color=BLUE, alpha=0.25)
        under_way.step(times, counts, where="post", color=BLUE, linewidth=1)
        under_way.set_title("Requests under way")
        under_way.set_ylim(bottom=0)
        edges = np.linspace(0, end, max(2, min(BINS, int(end * 4))) + 1)
        arrivals, weights = _arrivals(outcomes, zero)
        rates = np.histogram(arrivals, edges, weights=weights)[0] / np.diff(edges)
        tokens.stairs(rates, edges, fill=True, color=ORANGE, alpha=0.4)
        tokens.stairs(rates, edges, color=ORANGE, linewidth=1)
        tokens.set_title("Output tokens/s")
        tokens.set_xlabel("seconds from the first arrival")
        tokens.set_xlim(0, end)


def _plot_percentiles(axes: Axes, name: str, steps: Sequence[Step]) -> None:
    seen = [(step.measured.summary, step.trial) for step in steps]
    spreads = [(summary, summary.ttft if name == "TTFT" else summary.itl, trial) for summary, trial in seen]
    points = [(summary.output_rate, spread, trial) for summary, spread, trial in spreads if spread is not None]
    rates = [rate for rate, _, _ in points]
    for label, color in (("p99", ORANGE), ("p50", BLUE)):
        values = [1e3 * getattr(spread, label) for _, spread, _ in points]
        axes.plot(rates, values, color=color, linewidth=1.5, label=label, zorder=2)
        faces = [color if trial.holds else "white" for _, _, trial in points]
        axes.scatter(rates, values, s=22, c=faces, edgecolors=color, zorder=3)
    trials = [step.trial for step in steps]
    told = {min(trial.rate for trial in trials), highest_held(trials), max(trial.rate for trial in trials)}
    for rate, spread, trial in points:
        if trial.rate in told:
            axes.annotate(
                f"{trial.rate:.3g}/s",
                (rate, 1e3 * spread.p50),
                xytext=(0, -13),
                textcoords="offset points",
                ha="center",
                fontsize=8,
                fontweight="bold" if trial.rate == highest_held(trials) else "normal",
                color=GREY,
            )


def _plot_first_tokens(axes: Axes, outcomes: Sequence[Outcome], zero: float, slo: Slo) -> None:
    kept = [outcome for outcome in outcomes if slo.keeps(outcome)]
    missed = [outcome for outcome in whole(outcomes) if not slo.keeps(outcome)]
    for label, color, some in (
        ("within the objectives" if slo else "answered", BLUE, kept),
        ("outside", ORANGE, missed),
    ):
        seen = [outcome for outcome in some if outcome.events]
        if seen:
            times = [outcome.scheduled - zero for outcome in seen]
            axes.scatter(times, np.multiply(1e3, ttfts(seen)), s=12, color=color, label=label, alpha=0.8, linewidths=0)
    failed = [outcome.scheduled - zero for outcome in outcomes if outcome.error is not None]
    if failed:
        rug = axes.get_xaxis_transform()
        axes.plot(failed, [0.03] * len(failed), "|", color=RED, markersize=8, transform=rug, label="failed")
    _mark_limit(axes, slo.ttft)
    axes.set_title("Time to first token, by scheduled arrival")
    axes.set_ylabel("ms")
    axes.set_ylim(bottom=0)
    _legend(axes)


def _under_way(outcomes: Sequence[Outcome], zero: float) -> tuple[list[float], list[int]]:
    """How many requests were scheduled and not ended, at each time when that changed."""
    changes = sorted(
        change for outcome in outcomes for change in ((outcome.scheduled - zero, 1), (outcome.ended - zero, -1))
    )
    return [at for at, _ in changes], np.cumsum([step for _, step in changes]).tolist()


def _arrivals(outcomes: Sequence[Outcome], zero: float) -> tuple[list[float], list[float]]:
    """When events came, and how many tokens each holds on average in its stream."""
    times: list[float] = []
    weights: list[float] = []
    for outcome in outcomes:
        times += [at - zero for at in outcome.events]
        weights += [outcome.output_tokens / len(outcome.events) for _ in outcome.events]
    return times, weights


def _mark_limit(axes: Axes, limit: float | None) -> None:
    if limit is not None:
        axes.axhline(limit * 1e3, color=RED, linewidth=1, linestyle="--", label=f"objective {limit * 1e3:g} ms")


def _legend(axes: Axes) -> None:
    """On the line of the title, where no data is."""
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=4)


def _plain_number(value: float, _: object) -> str:
    """Of a tick on a logarithmic axis: 1, 2 and 5 of each decade."""
    leading = f"{value:e}"[0]
    return f"{value:g}" if leading in "125" else ""


@contextmanager
def _figure(
    file: Path, rows: int, columns: int, size: tuple[float, float], sharex: bool = False
) -> Iterator[tuple[Figure, Sequence[Axes]]]:
    """Saved at the end of the block."""
    mpl.use("agg")
    with mpl.rc_context(STYLE):
        figure, axes = plt.subplots(rows, columns, figsize=size, sharex=sharex, squeeze=False)
        yield figure, list(axes.flat)
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file)
        plt.close(figure)
