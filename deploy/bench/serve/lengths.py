"""How long prompts and answers are."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from numpy.random import Generator

from deploy.bench.serve.traces import read_trace

_SPAN = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)
_PREFILL, _DECODE = "num_prefill_tokens", "num_decode_tokens"


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of a prompt and of its answer."""

    prompt: int
    output: int


class LengthSource(Protocol):
    """Draws the lengths of `count` requests."""

    def draw(self, count: int, rng: Generator) -> list[Lengths]: ...


@dataclass(frozen=True, slots=True)
class Span:
    """Uniform from `low` to `high`, both included; fixed where they are equal."""

    low: int
    high: int

    @staticmethod
    def parse(text: str) -> Span:
        """`200` or `32-512`. Raises ValueError."""
        match = _SPAN.fullmatch(text.strip())
        low = int(match[1]) if match else 0
        high = int(match[2] or low) if match else 0
        if not 1 <= low <= high:
            raise ValueError(
                f"{text!r} is no length: it must be a number of tokens such as 200 or a span such as 32-512"
            )
        return Span(low, high)


@dataclass(frozen=True, slots=True)
class UniformLengths:
    """Prompts and answers drawn independently."""

    prompt: Span
    output: Span

    def draw(self, count: int, rng: Generator) -> list[Lengths]:
        prompts = rng.integers(self.prompt.low, self.prompt.high, count, endpoint=True).tolist()
        outputs = rng.integers(self.output.low, self.output.high, count, endpoint=True).tolist()
        return [Lengths(prompt, output) for prompt, output in zip(prompts, outputs, strict=True)]


@dataclass(frozen=True, slots=True)
class EmpiricalLengths:
    """Drawn with replacement from observed pairs, so that long prompts keep their answers."""

    observed: Sequence[Lengths]

    def draw(self, count: int, rng: Generator) -> list[Lengths]:
        return [self.observed[index] for index in rng.integers(0, len(self.observed), count)]


def read_lengths(path: Path, scale: float = 1.0) -> EmpiricalLengths:
    """The lengths in a request trace, or in a table with the columns num_prefill_tokens and num_decode_tokens.
    Raises ValueError."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    rows = _length_table(path) or [Lengths(row.prompt_tokens, row.output_tokens) for row in read_trace(path)]
    return EmpiricalLengths([scaled(row, scale) for row in rows])


def scaled(lengths: Lengths, scale: float) -> Lengths:
    return Lengths(max(1, round(lengths.prompt * scale)), max(1, round(lengths.output * scale)))


def _length_table(path: Path) -> list[Lengths]:
    """Empty if the file is none."""
    if path.suffix != ".csv":
        return []
    with path.open(newline="") as file:
        table = csv.DictReader(file)
        if not {_PREFILL, _DECODE} <= set(table.fieldnames or ()):
            return []
        return [Lengths(int(row[_PREFILL]), int(row[_DECODE])) for row in table]
