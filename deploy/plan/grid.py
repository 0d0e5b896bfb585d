"""A table of measured times, read at any point: exact where it was measured, and in between straight lines on
logarithmic axes, so that a value never leaves the range of its neighbours.

Below an axis' first value time is taken as constant (what remains is the cost of a launch); beyond its last, time grows
in proportion, or with the power of the axis that the caller names.
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

# Axis by axis: value -> the table of the axes after it, and at the end seconds. Rows may end at different values.
Tree: TypeAlias = "dict[float, Tree] | float"


def read_grid(file: Path) -> Tree:
    """A file as `reduce_tables.py` writes it: leading axes in rows, the last axis in columns, microseconds."""
    with file.open(newline="") as lines:
        header, *rows = csv.reader(line for line in lines if not line.startswith("#"))
    axes = sum(not name.isdigit() for name in header)
    columns = [float(name) for name in header[axes:]]
    tree: dict[float, Tree] = {}
    for row in rows:
        node = tree
        for value in row[:axes]:
            child = node.setdefault(float(value), {})
            assert isinstance(child, dict)
            node = child
        node |= {column: float(cell) * 1e-6 for column, cell in zip(columns, row[axes:], strict=True) if cell}
    return tree


def time_at(tree: Tree, point: Sequence[float], powers: Mapping[int, float] | None = None) -> float:
    """Seconds at `point`, one value an axis. `powers` gives, by axis, how time grows beyond the last value (1.0)."""
    return _time_at(tree, tuple(point), powers or {}, 0)


def _time_at(tree: Tree, point: tuple[float, ...], powers: Mapping[int, float], axis: int) -> float:
    if not isinstance(tree, dict):
        return tree
    value, measured = point[axis], list(tree)
    assert measured == sorted(measured), "the rows of a table must be sorted"

    def at(index: int) -> float:
        return _time_at(tree[measured[index]], point, powers, axis + 1)

    right = bisect_right(measured, value)
    if right == 0:
        return at(0)
    if value == measured[right - 1]:
        return at(right - 1)
    if right == len(measured):
        return at(-1) * float((value / measured[-1]) ** powers.get(axis, 1.0))
    before, after = at(right - 1), at(right)
    share = math.log(value / measured[right - 1]) / math.log(measured[right] / measured[right - 1])
    return float(before ** (1 - share) * after**share)
