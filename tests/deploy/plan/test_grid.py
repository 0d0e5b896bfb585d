"""Reading a table: exact where it was measured, between its neighbours elsewhere."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.plan.grid import read_grid, time_at
from deploy.plan.tables import OUR_TABLES

TABLE = """# Where it comes from.
kind,size,10,100,1000
1,2,5,50,500
1,4,10,100,
2,2,7,70,700
"""


@pytest.fixture
def tree(tmp_path: Path) -> object:
    file = tmp_path / "table.csv"
    file.write_text(TABLE)
    return read_grid(file)


@pytest.mark.parametrize("file", sorted(OUR_TABLES.glob("*.csv")), ids=lambda file: file.stem)
def test_every_measured_point_comes_back(file: Path) -> None:
    tree = read_grid(file)
    header, *rows = csv.reader(line for line in file.read_text().splitlines() if not line.startswith("#"))
    axes = sum(not name.isdigit() for name in header)
    cells = 0
    for row in rows:
        for column, cell in zip(header[axes:], row[axes:], strict=True):
            if cell:
                cells += 1
                assert time_at(tree, [float(value) for value in (*row[:axes], column)]) == pytest.approx(
                    float(cell) * 1e-6
                )
    assert cells > 10


def test_between_two_points_time_rises_from_one_to_the_other(tree: object) -> None:
    times = [time_at(tree, (1, 2, size)) for size in range(10, 101)]
    assert times == sorted(times)
    assert times[0] == pytest.approx(5e-6)
    assert times[-1] == pytest.approx(50e-6)
    assert time_at(tree, (1, 3, 10)) == pytest.approx(5e-6 * 2 ** (0.5849625))


@given(st.floats(1, 2), st.floats(2, 4), st.floats(10, 100))
def test_no_value_leaves_the_range_of_its_corners(kind: float, size: float, last: float) -> None:
    tree = {1.0: {2.0: {10.0: 5.0, 100.0: 9.0}, 4.0: {10.0: 3.0, 100.0: 8.0}}, 2.0: {2.0: {10.0: 7.0, 100.0: 20.0}}}
    assert 3.0 - 1e-9 <= time_at(tree, (kind, size, last)) <= 2 * 20.0 + 1e-9


def test_beyond_the_last_point_time_grows_in_proportion_or_as_told(tree: object) -> None:
    assert time_at(tree, (1, 2, 4000)) == pytest.approx(2000e-6)
    assert time_at(tree, (1, 2, 4000), powers={2: 2.0}) == pytest.approx(8000e-6)


def test_a_row_that_ends_early_goes_on_from_where_it_ends(tree: object) -> None:
    assert time_at(tree, (1, 4, 1000)) == pytest.approx(1000e-6)


def test_below_the_first_point_time_is_constant(tree: object) -> None:
    assert time_at(tree, (1, 1, 1)) == pytest.approx(5e-6)
