"""Sizes and durations as people write them in the configuration: `2GiB`, `500ms`."""

from __future__ import annotations

import re

_BYTES = {"b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12}
_BYTES |= {"kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30, "tib": 2.0**40}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?) ?([a-z]+)", re.IGNORECASE | re.ASCII)


def parse_bytes(value: object) -> int:
    """A whole number of bytes from `2GiB`, `512MiB`, `1.5GB` or a plain number."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2].lower() not in _BYTES:
        raise ValueError("must be a size such as 2GiB, 512MiB or a number of bytes")
    return round(float(match[1]) * _BYTES[match[2].lower()])


def parse_duration(value: object) -> float:
    """Seconds from `500ms`, `2s` or `1min`. A bare number is refused: nobody could tell its unit."""
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2] not in _SECONDS:
        raise ValueError("must be a duration with its unit, such as 500ms or 2s")
    return float(match[1]) * _SECONDS[match[2]]
