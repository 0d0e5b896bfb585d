"""Readers of published request traces.

Mooncake (kvcache-ai/Mooncake, FAST '25): JSON lines with a timestamp in milliseconds, the lengths, and the ids of the
prompt's chained blocks of 512 tokens. Azure (AzurePublicDataset, LLM inference 2023): CSV with absolute timestamps
and the lengths.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path

import msgspec

MOONCAKE_BLOCK = 512
_AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request; `at` is in seconds from the first. Requests that share leading `blocks` share that prefix."""

    at: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


class _MooncakeRow(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


def read_trace(path: Path, limit: int | None = None) -> list[TraceRow]:
    """The first `limit` rows, from time 0. Raises ValueError naming the file and the line."""
    readers = {".jsonl": _mooncake, ".csv": _azure}
    if path.suffix not in readers:
        raise ValueError(f"{path} is no trace: it must be a .jsonl file (Mooncake) or a .csv file (Azure)")
    if not path.is_file():
        raise ValueError(f"there is no trace {path}")
    rows = list(islice(readers[path.suffix](path), limit))
    if not rows:
        raise ValueError(f"the trace {path} has no rows")
    start = min(row.at for row in rows)
    return sorted((_shifted(row, start) for row in rows), key=lambda row: row.at)


def _mooncake(path: Path) -> Iterator[TraceRow]:
    decode = msgspec.json.Decoder(_MooncakeRow).decode
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                row = decode(line)
            except msgspec.DecodeError as error:
                raise ValueError(f"{path}, line {number}, is no row of a Mooncake trace: {error}") from error
            yield TraceRow(row.timestamp / 1e3, row.input_length, row.output_length, row.hash_ids)


def _azure(path: Path) -> Iterator[TraceRow]:
    with path.open(newline="") as file:
        table = csv.DictReader(file)
        if missing := set(_AZURE_COLUMNS) - set(table.fieldnames or ()):
            raise ValueError(f"{path} is no Azure trace: it has no column {min(missing)}")
        for row in table:
            try:
                stamp, prompt, output = (row[column] for column in _AZURE_COLUMNS)
                yield TraceRow(_seconds(stamp), int(prompt), int(output))
            except (ValueError, TypeError) as error:
                raise ValueError(f"{path}, line {table.line_num}, is no row of an Azure trace: {error}") from error


def _seconds(stamp: str) -> float:
    """Of a time stamp with seven decimals, of which datetime reads six."""
    whole, _, fraction = stamp.strip().partition(".")
    return datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{fraction or 0}")


def _shifted(row: TraceRow, start: float) -> TraceRow:
    return TraceRow(row.at - start, row.prompt_tokens, row.output_tokens, row.blocks)
