"""Measures, and puts the results where they were asked for: on the screen, in a JSON file, in pictures."""

from __future__ import annotations

import resource
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from deploy.bench.serve.plots import plot_curve, plot_itl, plot_timeline
from deploy.bench.serve.progress import progress_bar
from deploy.bench.serve.records import compared_record, measured_record, sweep_record
from deploy.bench.serve.report import print_compared, print_measured, print_sweep
from deploy.bench.serve.session import Bars, Settings, measure_both, measure_load, measure_sweep
from deploy.errors import UserError
from deploy.json_file import check_folder, write_json

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Results:
    """Where results go, and what was asked."""

    asked: Mapping[str, Any]
    json_file: Path | None
    plots: Path | None
    quiet: bool


def run_load(settings: Settings, results: Results) -> None:
    measured = _measure(partial(measure_load, settings), results)
    if not results.quiet:
        print_measured(measured, settings.slo)
    write_json(results.json_file, measured_record(measured, _asked(settings, results)))
    if results.plots is not None:
        plot_itl(results.plots / "itl.png", {"": measured.run.outcomes}, settings.slo)
        plot_timeline(results.plots / "timeline.png", measured.run.outcomes, settings.slo)


def run_sweep(settings: Settings, wanted: float, results: Results) -> None:
    steps = _measure(partial(measure_sweep, settings, wanted), results)
    if not results.quiet:
        print_sweep(steps, settings.slo, wanted)
    write_json(results.json_file, sweep_record(steps, _asked(settings, results)))
    if results.plots is not None:
        plot_curve(results.plots / "curve.png", steps, settings.slo)


def run_comparison(settings: Settings, pairs: int, results: Results) -> None:
    compared = _measure(partial(measure_both, settings, pairs), results)
    if not results.quiet:
        print_compared(compared, settings.slo)
    write_json(results.json_file, compared_record(compared, _asked(settings, results)))
    if results.plots is not None:
        runs = {"A": compared.first.run.outcomes, "B": compared.second.run.outcomes}
        plot_itl(results.plots / "itl.png", runs, settings.slo)


def _measure(measure: Callable[[Bars], Coroutine[Any, Any, T]], results: Results) -> T:
    """On uvloop, whose events cost less than those of asyncio's own loop."""
    check_folder(results.json_file and results.json_file.parent)
    check_folder(results.plots and results.plots.parent)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a connection is an open file
    try:
        return uvloop.run(measure(partial(progress_bar, quiet=results.quiet)))
    except KeyboardInterrupt:
        raise UserError("stopped before the measurement was complete: there is no result") from None


def _asked(settings: Settings, results: Results) -> dict[str, Any]:
    return {**results.asked, "text_seed": settings.text_seed}
