"""When two JSON values are the same: 1 and 1.0 are, 1 and true are not."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any


def identity(value: Any) -> Hashable:
    """Equal for equal values, and for no others."""
    if isinstance(value, bool) or value is None:
        return ("constant", value)
    if isinstance(value, dict):
        return ("object", frozenset((name, identity(one)) for name, one in value.items()))
    if isinstance(value, list):
        return ("array", tuple(map(identity, value)))
    return value if isinstance(value, (str, int, float)) else ("other", str(value))


def type_of(value: Any) -> str:
    """One of `keywords.ALL_TYPES`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "integer" if value == int(value) else "fraction"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"
