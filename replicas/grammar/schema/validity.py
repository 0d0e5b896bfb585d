"""Whether a value satisfies a schema: for the values that a schema itself lists. What is asked of a value is read in
the same way as what is written, so that neither can allow what the other does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from replicas.grammar.schema.equality import identity, type_of
from replicas.grammar.schema.facts import count_bounds, excluded_values, number_rules, string_rules
from replicas.grammar.schema.keywords import ALL_TYPES
from replicas.grammar.schema.logic import Logic, Part, allowed_types


def is_valid(logic: Logic, schema: Any, value: Any) -> bool:
    return any(allows(logic, parts, value) for parts in logic.alternatives([schema]))


def allows(logic: Logic, parts: Sequence[Part], value: Any) -> bool:
    """Whether a value satisfies all parts of an alternative."""
    name = type_of(value)
    for part in parts:
        if "type" in part and name not in allowed_types(part["type"]):
            return False
        if name not in part.get("~types", ALL_TYPES):
            return False
        if "enum" in part and identity(value) not in map(identity, part["enum"]):
            return False
        if "const" in part and identity(value) != identity(part["const"]):
            return False
    if identity(value) in map(identity, excluded_values(parts)):
        return False
    match value:
        case bool() | None:
            return True
        case str():
            return string_rules(parts).accepts(value)
        case int() | float():
            return number_rules(parts, whole=False).accepts(value)
        case list():
            return _allows_array(logic, parts, value)
    return _allows_object(logic, parts, value)


def _allows_array(logic: Logic, parts: Sequence[Part], value: list[Any]) -> bool:
    from replicas.grammar.schema.arrays import ArrayRules

    rules = ArrayRules(parts, logic)
    if len(value) < rules.least or (rules.most is not None and len(value) > rules.most):
        return False
    if any(part.get("uniqueItems") for part in parts) and len(set(map(identity, value))) < len(value):
        return False
    for part in parts:
        if "contains" in part:
            count = sum(is_valid(logic, part["contains"], item) for item in value)
            if not part.get("minContains", 1) <= count <= part.get("maxContains", len(value)):
                return False
    return all(_holds(logic, rules.item(place), item) for place, item in enumerate(value))


def _allows_object(logic: Logic, parts: Sequence[Part], value: dict[str, Any]) -> bool:
    from replicas.grammar.schema.objects import ObjectRules

    rules = ObjectRules(parts, logic)
    least, most = count_bounds(parts, "Properties")
    if len(value) < least or (most is not None and len(value) > most):
        return False
    if not all(name in value for name in rules.required):
        return False
    names = [part["propertyNames"] for part in parts if "propertyNames" in part]
    return all(_holds(logic, rules.value_of(name), one) and _holds(logic, names, name) for name, one in value.items())


def _holds(logic: Logic, conjunction: Sequence[Any], value: Any) -> bool:
    return any(allows(logic, parts, value) for parts in logic.alternatives(conjunction))
