"""What the command tells a person: one screen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from deploy.bench.serve.compare import CONFIDENCE, Ratio
from deploy.bench.serve.measure import Spread, Summary
from deploy.bench.serve.session import Compared, Measured, Step
from deploy.bench.serve.slo import Slo
from deploy.bench.serve.sweep import highest_held
from deploy.bench.serve.target import Target


def print_measured(measured: Measured, slo: Slo) -> None:
    console = _console()
    console.print(f"[bold]{heading(measured.target)}[/]")
    console.print(_latencies(measured.summary))
    for line in notes(measured, slo):
        console.print(line)


def print_sweep(steps: Sequence[Step], slo: Slo, wanted: float) -> None:
    console = _console()
    console.print(f"[bold]{heading(steps[0].measured.target)}[/]")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("requests/s", "within", "failed", "TTFT p50", "p99", "ITL p50", "p99", "output tokens/s"):
        table.add_column(column, justify="right")
    for step in steps:
        table.add_row(*_step_cells(step), style=None if step.trial.holds else "dim")
    console.print(table)
    console.print(verdict(steps, slo, wanted))
    for line in _complaints([step.measured for step in steps]):
        console.print(line)


def print_compared(compared: Compared, slo: Slo) -> None:
    console = _console()
    for name, measured in zip("AB", (compared.first, compared.second), strict=True):
        console.print(f"[bold]{name}[/]  {heading(measured.target)}")
        console.print(f"   {_requests(measured.summary)}")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("", "A", "B", "A ÷ B", f"{CONFIDENCE:.0%} interval"):
        table.add_column(column, justify="right" if column else "left")
    for ratio in compared.ratios:
        table.add_row(*_ratio_cells(ratio), style="bold" if ratio.decided else None)
    console.print(table)
    console.print(f"{compared.pairs} pairs of rounds. Bold: the interval leaves out 1.")
    if slo:
        console.print(f"Goodput counts answers within {described(slo)}.")
    for line in _complaints([compared.first, compared.second]):
        console.print(line)


def heading(target: Target) -> str:
    dialect = target.dialect
    return f"{target.url}{dialect.path} · {dialect.model} · prompts of {'token ids' if dialect.ids else 'words'}"


def notes(measured: Measured, slo: Slo) -> Iterator[str]:
    """What the table of latencies does not hold."""
    summary = measured.summary
    yield f"requests   {_requests(summary)}"
    yield (
        f"tokens     {summary.output_tokens:,} output ({summary.output_rate:,.1f}/s), "
        f"{summary.prompt_tokens + summary.output_tokens:,} in all ({summary.total_rate:,.1f}/s), "
        f"{summary.tokens_per_event:.2f} an event"
    )
    yield f"prompts    {_prompts(measured)}"
    if summary.goodput is not None:
        yield (
            f"goodput    {summary.goodput.share:.1%} of all requests, {summary.goodput.rate:.2f}/s, "
            f"within {described(slo)}"
        )
    effort = summary.effort
    yield (
        f"generator  {effort.cpu_share:.1%} of a core, {effort.cpu_per_event * 1e6:.0f} µs an event; "
        f"sent late by {effort.late.p50 * 1e3:.1f} ms (p50), {effort.late.p99 * 1e3:.1f} ms (p99)"
    )
    yield from _complaints([measured])


def verdict(steps: Sequence[Step], slo: Slo, wanted: float) -> str:
    """The sentence that a sweep is made for."""
    objective = f"{100 * wanted:.3g} % of all requests were within {described(slo)}"
    highest = highest_held([step.trial for step in steps])
    if highest is None:
        return f"At no rate that was tried, down to {steps[0].trial.rate:.3g} requests/s, {objective}."
    return f"The highest rate at which {objective}: [bold]{highest:.3g} requests/s[/]."


def described(slo: Slo) -> str:
    limits = (("TTFT", slo.ttft), ("ITL", slo.itl), ("TPOT", slo.tpot), ("end-to-end", slo.e2e))
    return ", ".join(f"{name} {limit * 1e3:g} ms" for name, limit in limits if limit is not None)


def _latencies(summary: Summary) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("ms", "p50", "p90", "p99"):
        table.add_column(column, justify="left" if column == "ms" else "right", min_width=9)
    rows = (("TTFT", summary.ttft), ("ITL", summary.itl), ("TPOT", summary.tpot), ("end-to-end", summary.e2e))
    for name, spread in rows:
        table.add_row(name, *_cells(spread))
    return table


def _cells(spread: Spread | None) -> list[str]:
    if spread is None:
        return ["–"] * 3
    return [_ms(value) for value in (spread.p50, spread.p90, spread.p99)]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f}"


def _requests(summary: Summary) -> str:
    failed = ", ".join(f"{count} {kind}" for kind, count in summary.errors.items())
    errors = f"; [red]failed: {failed}[/]" if failed else ""
    return (
        f"{summary.completed} of {summary.requests} answered in {summary.seconds:.1f} s "
        f"({summary.request_rate:.2f}/s){errors}"
    )


def _prompts(measured: Measured) -> str:
    summary, dialect = measured.summary, measured.target.dialect
    if not summary.prompt_tokens:
        return "the server does not say how long they were"
    length = f"{summary.prompt_tokens / summary.completed:,.0f} tokens on average"
    exact = "as planned" if dialect.exact else "about as planned"
    cached = f", {summary.cached_tokens / summary.prompt_tokens:.0%} of them cached" if summary.cached_tokens else ""
    return f"{length}, {exact}{cached}"


def _step_cells(step: Step) -> list[str]:
    summary = step.measured.summary
    assert summary.goodput is not None, "a sweep has objectives"
    ttft, itl = _cells(summary.ttft), _cells(summary.itl)
    return [
        f"{step.trial.rate:.3g}",
        f"{summary.goodput.share:.1%}",
        str(summary.requests - summary.completed),
        ttft[0],
        ttft[2],
        itl[0],
        itl[2],
        f"{summary.output_rate:,.1f}",
    ]


def _ratio_cells(ratio: Ratio) -> list[str]:
    values = [f"{value:,.2f}" for value in (ratio.first, ratio.second)]
    if ratio.ratio is None:
        return [f"{ratio.metric}, {ratio.unit}", *values, "–", "–"]
    return [f"{ratio.metric}, {ratio.unit}", *values, f"{ratio.ratio:.3f}", f"{ratio.low:.3f} – {ratio.high:.3f}"]


def _complaints(all_measured: Sequence[Measured]) -> Iterator[str]:
    """The worst one, if there is any."""
    efforts = [measured.summary.effort for measured in all_measured if measured.summary.effort.complaint is not None]
    if efforts:
        worst = max(efforts, key=lambda effort: effort.late.p99)
        yield f"[yellow]warning: {worst.complaint}[/]"


def _console() -> Console:
    return Console(highlight=False, emoji=False, soft_wrap=True)
