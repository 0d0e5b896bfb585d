"""What the parts of an alternative say together about values of one type."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from math import lcm
from typing import Any

from replicas.grammar.expression import Expression, Text, alt
from replicas.grammar.formats import FORMATS, format_expression
from replicas.grammar.numbers import Bound, NumberRules
from replicas.grammar.pattern import search_expression
from replicas.grammar.schema.equality import identity, type_of
from replicas.grammar.schema.keywords import SchemaError
from replicas.grammar.schema.logic import Part, types_of
from replicas.grammar.strings import StringRules

_INTEGER_FORMATS = {"int32": 31, "int64": 63}


def listed_values(parts: Iterable[Part]) -> list[Any] | None:
    """The values that enum and const leave; None without them."""
    values: list[Any] | None = None
    for part in parts:
        for listed in (part.get("enum"), [part["const"]] if "const" in part else None):
            if listed is None:
                continue
            if values is None:
                values = list(listed)
            else:
                known = {identity(value) for value in listed}
                values = [value for value in values if identity(value) in known]
    return values


def excluded_values(parts: Iterable[Part]) -> list[Any]:
    return [value for part in parts for value in part.get("~notEnum", ())]


def string_rules(parts: Sequence[Part]) -> StringRules:
    """Raises PatternError."""
    matches: dict[Expression, None] = {}
    excludes: dict[Expression, None] = {}
    for part in parts:
        if "pattern" in part:
            matches[search_expression(part["pattern"])] = None
        if part.get("format") in FORMATS:
            matches[format_expression(part["format"])] = None
        for pattern in part.get("~notPattern", ()):
            excludes[search_expression(pattern)] = None
    texts = [value for value in excluded_values(parts) if isinstance(value, str)]
    if texts:
        excludes[alt(*map(Text, texts))] = None
    least, most = count_bounds(parts, "Length")
    return StringRules(tuple(matches), tuple(excludes), least, most)


def number_rules(parts: Sequence[Part], whole: bool) -> NumberRules:
    """Raises SchemaError."""
    least: list[Bound] = []
    most: list[Bound] = []
    divisor = 1
    for part in parts:
        least += _bounds(part, "minimum", "exclusiveMinimum")
        most += _bounds(part, "maximum", "exclusiveMaximum")
        if (bits := _INTEGER_FORMATS.get(part.get("format", ""))) is not None and whole:
            least.append(Bound(Decimal(-(2**bits)), False))
            most.append(Bound(Decimal(2**bits - 1), False))
        if (step := part.get("multipleOf")) is not None:
            if step != int(step):
                raise SchemaError("multipleOf", f"is {step}, but only whole numbers are supported")
            divisor = lcm(divisor, int(step))
    return NumberRules(
        max(least, key=lambda bound: (bound.value, bound.open), default=None),
        min(most, key=lambda bound: (bound.value, not bound.open), default=None),
        divisor,
        whole,
    )


def count_bounds(parts: Iterable[Part], what: str) -> tuple[int, int | None]:
    """Of `minItems` and `maxItems` and the like."""
    least = max((int(part[f"min{what}"]) for part in parts if f"min{what}" in part), default=0)
    most = min((int(part[f"max{what}"]) for part in parts if f"max{what}" in part), default=None)
    return least, most


def has_type(parts: Sequence[Part], value: Any) -> bool:
    return type_of(value) in types_of(parts)


def _bounds(part: Part, closed: str, exclusive: str) -> list[Bound]:
    limit, strict = part.get(closed), part.get(exclusive)
    found = []
    if limit is not None:
        found.append(Bound(Decimal(repr(limit)), strict is True))
    if strict is not None and not isinstance(strict, bool):
        found.append(Bound(Decimal(repr(strict)), True))
    return found
