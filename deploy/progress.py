"""The bar that a person sees while a model is fetched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from deploy.wheel_file import Progress


@contextmanager
def download_bar(title: str) -> Iterator[Progress]:
    """Report to the result to draw the bar on the error stream. Nothing is drawn unless something is reported."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    bar = Bar(TextColumn("{task.description}"), *columns, console=Console(stderr=True))
    tasks: dict[str, TaskID] = {}

    def report(stage: str, done: int, total: int) -> None:
        if not tasks:
            bar.start()
        if stage not in tasks:
            tasks[stage] = bar.add_task(f"{title}: {stage}", total=total)
        bar.update(tasks[stage], completed=done)

    try:
        yield report
    finally:
        if tasks:
            bar.stop()
