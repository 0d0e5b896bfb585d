"""Whether two schemas have no value in common, as far as that is easily seen. oneOf rests on it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from replicas.grammar.schema.equality import identity
from replicas.grammar.schema.facts import count_bounds, listed_values, number_rules
from replicas.grammar.schema.keywords import ALL_TYPES
from replicas.grammar.schema.logic import Alternatives, Logic, Part, allowed_types

MAX_DEPTH = 8


def are_disjoint(left: Alternatives, right: Alternatives, logic: Logic, depth: int = 0) -> bool:
    return all(_parts_disjoint(one, other, logic, depth) for one, other in product(left, right))


def _parts_disjoint(left: Sequence[Part], right: Sequence[Part], logic: Logic, depth: int) -> bool:
    common = _stated_types(left) & _stated_types(right)
    ours, theirs = listed_values(left), listed_values(right)
    if ours is not None and theirs is not None:
        return {identity(value) for value in ours}.isdisjoint(map(identity, theirs))
    from replicas.grammar.schema.validity import allows

    if ours is not None:
        return not any(allows(logic, right, value) for value in ours)
    if theirs is not None:
        return not any(allows(logic, left, value) for value in theirs)
    return all(_type_disjoint(name, left, right, logic, depth) for name in common)


def _type_disjoint(name: str, left: Sequence[Part], right: Sequence[Part], logic: Logic, depth: int) -> bool:
    match name:
        case "integer" | "fraction":
            return _numbers_disjoint(left, right)
        case "string":
            return _counts_disjoint(left, right, "Length")
        case "array":
            return _counts_disjoint(left, right, "Items")
        case "object":
            return _objects_disjoint(left, right, logic, depth)
    return False


def _stated_types(parts: Sequence[Part]) -> frozenset[str]:
    """Other than what is meant: a schema that names no type allows all."""
    allowed = ALL_TYPES
    for part in parts:
        if "type" in part:
            allowed &= allowed_types(part["type"])
        allowed &= part.get("~types", ALL_TYPES)
    return allowed


def _numbers_disjoint(left: Sequence[Part], right: Sequence[Part]) -> bool:
    ours, theirs = number_rules(left, whole=False), number_rules(right, whole=False)
    for low, high in ((ours.least, theirs.most), (theirs.least, ours.most)):
        if low is None or high is None:
            continue
        if low.value > high.value or (low.value == high.value and (low.open or high.open)):
            return True
    return False


def _counts_disjoint(left: Sequence[Part], right: Sequence[Part], what: str) -> bool:
    (least, most), (other_least, other_most) = count_bounds(left, what), count_bounds(right, what)
    return (most is not None and most < other_least) or (other_most is not None and other_most < least)


def _objects_disjoint(left: Sequence[Part], right: Sequence[Part], logic: Logic, depth: int) -> bool:
    """They are if one needs a property that the other forbids, or that must be different in both."""
    from replicas.grammar.schema.objects import ObjectRules

    ours, theirs = ObjectRules(left, logic), ObjectRules(right, logic)
    if any(map(theirs.forbids, ours.required)) or any(map(ours.forbids, theirs.required)):
        return True
    if depth >= MAX_DEPTH:
        return False
    return any(
        are_disjoint(
            logic.alternatives(ours.value_of(name)), logic.alternatives(theirs.value_of(name)), logic, depth + 1
        )
        for name in ours.required
        if name in theirs.required
    )


def telling_property(left: Alternatives, right: Alternatives) -> str | None:
    """A property that every value of the right has, while those of the left need not have it."""
    if not right or not all(_stated_types(parts) == {"object"} for parts in right):
        return None
    needed = [{name for part in parts for name in part.get("required", ())} for parts in right]
    ours = {name for parts in left for part in parts for name in part.get("required", ())}
    return min(set.intersection(*needed) - ours, default=None)
