"""Schemas that only a few values satisfy."""

from __future__ import annotations

from typing import Any

from replicas.grammar.schema.equality import identity
from replicas.grammar.schema.facts import listed_values, number_rules
from replicas.grammar.schema.logic import Conjunction, Logic, types_of
from replicas.grammar.schema.validity import allows

MOST = 64


def finite_values(logic: Logic, conjunction: Conjunction) -> list[Any] | None:
    """All different values that are meant; None if they are too many to list."""
    values: list[Any] = []
    for parts in logic.alternatives(conjunction):
        listed = listed_values(parts)
        if listed is None:
            listed = []
            for name in sorted(types_of(parts)):
                if name in ("null", "boolean"):
                    listed += [None] if name == "null" else [False, True]
                elif name == "fraction" or (name == "integer" and "fraction" in types_of(parts)):
                    return None
                elif name == "integer" and (numbers := number_rules(parts, whole=True).values()) is not None:
                    if len(numbers) > MOST:
                        return None
                    listed += numbers
                else:
                    return None
        values += [value for value in listed if allows(logic, parts, value)]
    unique = list({identity(value): value for value in values}.values())
    return unique if len(unique) <= MOST else None
