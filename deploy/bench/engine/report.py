"""What the command tells a person, and the same as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from deploy.bench.engine.limits import Limits
from deploy.bench.engine.phases import Reading
from deploy.bench.engine.session import Measured
from deploy.bench.engine.work import weights_read


def print_measured(measured: Measured, title: str) -> None:
    console = Console(highlight=False, emoji=False, soft_wrap=True)
    console.print(f"[bold]{title} · {measured.form.name} · {_threads(measured.threads)}[/]")
    for line in limit_lines(measured):
        console.print(line)
    table = _table("phase", "", "", "of the limit", "of")
    for reading in measured.readings:
        table.add_row(
            *(reading.phase, reading.name, value_of(reading)),
            *share_cells(reading, measured.limits),
        )
    console.print(table)
    for warning in warnings(measured):
        console.print(f"[yellow]warning: {warning}[/]")
    if measured.ablated:
        console.print("\nHow many times better everything is than without one mechanism:")
        console.print(_ablations(measured))


def limit_lines(measured: Measured) -> Iterator[str]:
    limits, step = measured.limits, weights_read(measured.model, measured.form)
    yield (
        f"memory    {limits.memory / 1e9:.1f} GB/s, and {limits.step / 1e9:.1f} GB/s over {step / 1e6:.0f} MB, "
        f"as many as a step reads of the weights"
    )
    yield f"matrices  {limits.matrix / 1e9:.0f} GFLOP/s at the model's shapes"


def value_of(reading: Reading) -> str:
    return f"{reading.value:,.{1 if reading.value < 1000 else 0}f} {reading.unit}"


def share(reading: Reading, limits: Limits) -> float | None:
    """Of the fastest that the limits allow; None if that is not known."""
    return None if reading.work is None else limits.seconds(reading.work) / reading.seconds


def share_cells(reading: Reading, limits: Limits) -> tuple[str, str]:
    reached = share(reading, limits)
    if reached is None or reading.work is None:
        return "", ""
    return f"{reached:.0%}", "memory" if limits.is_bound_by_memory(reading.work) else "matrices"


def warnings(measured: Measured) -> Iterator[str]:
    """Where a reading shows that what was measured as the limit is none."""
    for reading in measured.readings:
        reached = share(reading, measured.limits)
        if reached is not None and reached > 1:
            yield (
                f"{reading.phase} reached {reached:.0%} of what should be the limit, so that was measured too low: was "
                f"this machine busy with something else?"
            )


def ratio(whole: Reading, without: Reading) -> float:
    """How many times better the first is. Zero by zero is no difference."""
    better, worse = (whole, without) if whole.better == "more" else (without, whole)
    if worse.value == 0:
        return 1.0 if better.value == 0 else float("inf")
    return better.value / worse.value


def as_json(measured: Measured, asked: dict[str, Any]) -> dict[str, Any]:
    """Of what was ablated without shares: the limits are those of the whole engine's form."""
    return {
        "asked": asked,
        "form": measured.form.name,
        "threads": measured.threads,
        "limits": asdict(measured.limits),
        "readings": [
            {**_record(reading), "share_of_limit": share(reading, measured.limits)} for reading in measured.readings
        ],
        "ablated": {each.name: [_record(reading) for reading in each.readings] for each in measured.ablated},
    }


def _record(reading: Reading) -> dict[str, Any]:
    return {"phase": reading.phase, "name": reading.name, "unit": reading.unit, "value": reading.value}


def _ablations(measured: Measured) -> Table:
    headings = (f"{reading.phase}\n{reading.name}".replace(" ", "\n") for reading in measured.readings)
    table = _table("without", *headings)
    for each in measured.ablated:
        ratios = (ratio(whole, without) for whole, without in zip(measured.readings, each.readings, strict=True))
        table.add_row(each.name, *(f"{value:.2f}" for value in ratios))
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", vertical="bottom")
    return table


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"
