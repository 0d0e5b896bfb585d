"""The bar that a person sees while requests are under way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from deploy.bench.serve.generator import Done
from deploy.bench.serve.outcome import Outcome


@contextmanager
def progress_bar(title: str, requests: int, quiet: bool) -> Iterator[Done]:
    """Call the result with each outcome. Nothing is drawn if the error stream is no terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TaskProgressColumn())
    counts = TextColumn("{task.fields[seen]}")
    bar = Progress(*columns, TimeElapsedColumn(), counts, console=console, transient=True, refresh_per_second=2)
    bar.disable = quiet or not console.is_terminal
    tokens = errors = 0

    with bar:
        task = bar.add_task(title, total=requests, seen="")

        def done(outcome: Outcome) -> None:
            nonlocal tokens, errors
            tokens += outcome.output_tokens
            errors += outcome.error is not None
            failed = f", [red]{errors} failed[/]" if errors else ""
            bar.update(task, advance=1, seen=f"{tokens:,} tokens{failed}")

        yield done
