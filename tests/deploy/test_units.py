"""Sizes and durations in the configuration."""

from __future__ import annotations

import pytest

from deploy.units import parse_bytes, parse_duration


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2GiB", 2 * 1024**3),
        ("512MiB", 512 * 1024**2),
        ("1.5GB", 1_500_000_000),
        ("1 kib", 1024),
        ("7B", 7),
        (4096, 4096),
    ],
)
def test_sizes(text: object, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("value", ["2", "2G", "GiB", "-1GiB", "2GiBx", "", "٣GiB", True, 1.5, None, [1]])
def test_what_is_no_size_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="2GiB"):
        parse_bytes(value)


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("2s", 2.0), ("1.5 s", 1.5), ("250us", 250e-6), ("1min", 60.0)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("value", [500, 0.5, "500", "ms", "-2s", "2h", "1s500ms", True, None])
def test_what_is_no_duration_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="500ms"):
        parse_duration(value)
