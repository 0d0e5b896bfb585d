"""What a comparison shows to people: a table, and a picture of where each policy stands."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from deploy.simulate.comparison import Result
from deploy.simulate.journal import Figures

_COLUMNS = (
    "policy",
    "reuse",
    "TTFT\nmean ms",
    "\np50 ms",
    "\np99 ms",
    "ITL\nmean ms",
    "\np99 ms",
    "goodput",
    "imbalance",
)


def print_table(result: Result) -> None:
    limits, rates = result.bounds, result.rates
    table = Table(box=None, pad_edge=False)
    for column in (*_COLUMNS, *(["requests/s\nin time"] if rates else [])):
        table.add_column(column, justify="left" if column == "policy" else "right", no_wrap=True)
    for name, found in result.figures.items():
        rate = [f"{rates[name]:.2f}" if name in rates else ""] if rates else []
        table.add_row(name, *_cells(found), *rate)
    console = Console(highlight=False)
    console.print(table)
    console.print(
        f"reuse of one cache of all blocks: {limits.pooled_lru_reuse:.3f} if the least recently used goes, "
        f"{limits.belady_reuse:.3f} if the future is known; without any limit {limits.ideal_reuse:.3f}"
    )


def draw(result: Result, file: Path) -> None:
    """Reuse against the 99th percentile of TTFT: what is better lies further up and further left."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for name, found in result.figures.items():
        axes.scatter(found.ttft_p99_ms, found.reuse, s=60, label=name)
        axes.annotate(name, (found.ttft_p99_ms, found.reuse), xytext=(6, 6), textcoords="offset points")
    limits = result.bounds
    for value, label in ((limits.ideal_reuse, "no limit"), (limits.pooled_lru_reuse, "one pooled LRU")):
        axes.axhline(value, color="grey", linewidth=0.8, linestyle="--")
        axes.annotate(label, (0.99, value), xycoords=("axes fraction", "data"), ha="right", va="bottom", color="grey")
    axes.set(xlabel="TTFT p99, ms", ylabel="prompt tokens found in a KV cache")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    figure.savefig(file, dpi=150)
    pyplot.close(figure)


def _cells(found: Figures) -> tuple[str, ...]:
    return (
        f"{found.reuse:.3f}",
        f"{found.ttft_mean_ms:.0f}",
        f"{found.ttft_p50_ms:.0f}",
        f"{found.ttft_p99_ms:.0f}",
        f"{found.itl_mean_ms:.1f}",
        f"{found.itl_p99_ms:.1f}",
        f"{found.goodput:.4f}",
        f"{found.imbalance:.2f}",
    )
