"""A whole schema as a grammar."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from replicas.grammar.automaton import TooComplexError
from replicas.grammar.ebnf import print_rules
from replicas.grammar.expression import Expression, Text, alt, prune
from replicas.grammar.rules import Rules
from replicas.grammar.schema.arrays import ArrayRules
from replicas.grammar.schema.document import Document
from replicas.grammar.schema.facts import listed_values, number_rules, string_rules
from replicas.grammar.schema.keywords import SchemaError
from replicas.grammar.schema.logic import Conjunction, Logic, Part, types_of
from replicas.grammar.schema.objects import ObjectRules
from replicas.grammar.schema.validity import allows
from replicas.grammar.schema.writer import Writer
from replicas.grammar.strings import literal

ORDER = ("object", "array", "string", "integer", "fraction", "boolean", "null")


def schema_to_ebnf(schema: Any) -> str:
    """Raises SchemaError or PatternError for what cannot be enforced."""
    translation = _Translation(schema)
    try:
        return translation.text()
    except TooComplexError as error:
        raise SchemaError("schema", f"is too complex: {error}") from None
    except RecursionError:
        raise SchemaError("schema", "is nested too deeply") from None


class _Translation:
    def __init__(self, schema: Any) -> None:
        self._logic = Logic(Document(schema))
        self._rules = Rules()
        self._writer = Writer(self._rules, self._value)
        self._root = schema

    def text(self) -> str:
        root = self._value([self._root])
        self._rules.complete()
        pruned = prune(self._rules.bodies, root.name)
        if not pruned:
            raise SchemaError("schema", "cannot be satisfied by any value that ends")
        return print_rules(pruned, root.name)

    def _value(self, conjunction: Conjunction) -> Any:
        """The rule for values that satisfy all of the schemas."""
        distinct = {_key(schema): schema for schema in conjunction if schema is not True and schema != {}}
        return self._rules.rule(("value", *distinct), lambda: self._alternatives(list(distinct.values())))

    def _alternatives(self, conjunction: Conjunction) -> Expression:
        return alt(*(self._one(parts) for parts in self._logic.alternatives(conjunction)))

    def _one(self, parts: Sequence[Part]) -> Expression:
        listed = listed_values(parts)
        if listed is not None:
            return alt(*(literal(value) for value in listed if allows(self._logic, parts, value)))
        types = types_of(parts)
        if "fraction" in types and "integer" in types:
            types -= {"integer"}  # numbers of both kinds are written by one rule
        return alt(*(self._of_type(name, parts) for name in ORDER if name in types))

    def _of_type(self, name: str, parts: Sequence[Part]) -> Expression:
        match name:
            case "object":
                return self._compound(ObjectRules(parts, self._logic), parts)
            case "array":
                return self._compound(ArrayRules(parts, self._logic), parts)
            case "string":
                return string_rules(parts).quoted(self._rules)
            case "integer" | "fraction":
                return self._number(name, parts)
            case "boolean":
                return self._listed((True, False), parts)
        return self._listed((None,), parts)

    def _compound(self, rules: ObjectRules | ArrayRules, parts: Sequence[Part]) -> Expression:
        if any(isinstance(value, (dict, list)) for part in parts for value in part.get("~notEnum", ())):
            raise SchemaError("not", "is not supported for an object or an array that is listed")
        if isinstance(rules, ObjectRules):
            return alt(rules.written(self._writer), *self._empty("{}", {}, parts))
        return alt(rules.written(self._writer), *self._empty("[]", [], parts))

    def _empty(self, text: str, value: Any, parts: Sequence[Part]) -> list[Expression]:
        return [Text(text)] if allows(self._logic, parts, value) else []

    def _number(self, name: str, parts: Sequence[Part]) -> Expression:
        if any(isinstance(value, (int, float)) for part in parts for value in part.get("~notEnum", ())):
            return self._number_but(parts, whole=name == "integer")
        return number_rules(parts, whole=name == "integer").written(self._rules)

    def _number_but(self, parts: Sequence[Part], whole: bool) -> Expression:
        """Numbers without some: those below, between and above."""
        if not whole:
            raise SchemaError("not", "is not supported for a number that is listed, unless all are integers")
        excluded = sorted({int(value) for part in parts for value in part.get("~notEnum", ()) if type(value) is int})
        bounds: list[int | None] = [None, *excluded, None]
        options = []
        for low, high in pairwise(bounds):
            limits = [] if low is None else [Part(exclusiveMinimum=low)]
            limits += [] if high is None else [Part(exclusiveMaximum=high)]
            options.append(number_rules([*parts, *limits], whole=True).written(self._rules))
        return alt(*options)

    def _listed(self, values: Sequence[Any], parts: Sequence[Part]) -> Expression:
        return alt(*(literal(value) for value in values if allows(self._logic, parts, value)))


def _key(schema: Any) -> str:
    if isinstance(schema, Part):
        return "part " + json.dumps(schema, default=sorted)
    return json.dumps(schema)
