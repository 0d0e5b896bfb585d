"""allOf, anyOf, oneOf, not, if and $ref resolved: a schema as alternatives, each a list of parts that hold together.

A part is a schema without those keywords. Negation adds keywords of its own, which no caller can write: `~types`,
`~notEnum`, `~notPattern` and `~absent`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any

from replicas.grammar.schema.document import Document
from replicas.grammar.schema.keywords import (
    ALL_TYPES,
    ANNOTATIONS,
    KEYWORDS_OF_TYPE,
    LOGIC,
    TYPES,
    SchemaError,
    check_keywords,
)

MAX_ALTERNATIVES = 512
MAX_DEPTH = 24

Conjunction = Sequence[Any]  # schemas that all hold


class Part(dict[str, Any]):
    """A schema that was checked, without logic."""


Alternatives = list[list[Part]]


class Logic:
    """Alternatives exclude each other only where oneOf says so."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._depth = 0

    def alternatives(self, conjunction: Conjunction) -> Alternatives:
        """Raises SchemaError."""
        with self._deeper():
            return self._alternatives(conjunction)

    @contextmanager
    def _deeper(self) -> Iterator[None]:
        """Schemas whose logic leads back to themselves, with no value in between, have no end."""
        self._depth += 1
        try:
            if self._depth > MAX_DEPTH:
                raise SchemaError("$ref", "leads back to itself, or through too many schemas")
            yield
        finally:
            self._depth -= 1

    def _alternatives(self, conjunction: Conjunction) -> Alternatives:
        parts: list[Part] = []
        choices: list[tuple[str, list[Conjunction]]] = []
        todo: list[tuple[Any, tuple[str, ...]]] = [(schema, ()) for schema in conjunction]
        while todo:
            schema, path = todo.pop(0)
            if schema is True or schema == {}:
                continue
            if schema is False:
                return []
            if isinstance(schema, Part):
                parts.append(schema)
                continue
            check_keywords(schema)
            if (reference := schema.get("$ref")) is not None:
                todo.insert(0, (self._document.resolve(reference), self._follow(path, reference)))
            todo += [(one, path) for one in schema.get("allOf", ())]
            choices += self._choices(schema)
            if part := {name: value for name, value in schema.items() if name not in LOGIC | ANNOTATIONS}:
                parts.append(Part(part))
        return self._multiplied(parts, choices)

    def _follow(self, path: tuple[str, ...], reference: str) -> tuple[str, ...]:
        if reference in path or len(path) >= MAX_DEPTH:
            raise SchemaError("$ref", f"is {reference[:80]!r}, which refers to nothing but itself")
        return (*path, reference)

    def _multiplied(self, parts: list[Part], choices: list[tuple[str, list[Conjunction]]]) -> Alternatives:
        """One alternative for each way to choose."""
        if not choices:
            return [parts]
        found: Alternatives = []
        for combination in product(*(options for _, options in choices)):
            found += self.alternatives([*parts, *(schema for option in combination for schema in option)])
            if len(found) > MAX_ALTERNATIVES:
                raise SchemaError(choices[-1][0], f"leads to more than {MAX_ALTERNATIVES} alternatives")
        return found

    def _choices(self, schema: Mapping[str, Any]) -> Iterable[tuple[str, list[Conjunction]]]:
        """The keyword of a choice, and its options."""
        if "anyOf" in schema:
            yield "anyOf", [[option] for option in schema["anyOf"]]
        if "oneOf" in schema:
            yield "oneOf", self._one_of(schema)
        if "not" in schema:
            yield "not", self._negated(schema["not"], "not")
        if "if" in schema and ("then" in schema or "else" in schema):
            condition = schema["if"]
            otherwise = [[*option, schema.get("else", True)] for option in self._negated(condition, "if")]
            yield "if", [[condition, schema.get("then", True)], *otherwise]
        dependencies = {**schema.get("dependencies", {}), **schema.get("dependentSchemas", {})}
        for name, names in schema.get("dependentRequired", {}).items():
            yield "dependentRequired", _dependent(name, {"required": names})
        for name, wanted in dependencies.items():
            yield "dependentSchemas", _dependent(name, {"required": wanted} if isinstance(wanted, list) else wanted)

    def _one_of(self, schema: Mapping[str, Any]) -> list[Conjunction]:
        """Each option, without what the others allow."""
        from replicas.grammar.schema.disjoint import are_disjoint, telling_property

        beside = {name: value for name, value in schema.items() if name != "oneOf"}
        options = schema["oneOf"]
        found: list[Conjunction] = []
        for index, option in enumerate(options):
            ours = self.alternatives([option, beside])
            conjunctions: list[Conjunction] = [[option]]
            for other in (*options[:index], *options[index + 1 :]):
                theirs = self.alternatives([other, beside])
                if are_disjoint(ours, theirs, self):
                    continue
                if (name := telling_property(ours, theirs)) is not None:
                    negations: list[Conjunction] = [[Part({"~absent": [name]})]]
                else:
                    negations = self._negated(other, "oneOf")
                conjunctions = [[*one, *negation] for one in conjunctions for negation in negations]
            found += conjunctions
        return found

    def _negated(self, schema: Any, keyword: str) -> list[Conjunction]:
        """Conjunctions none of whose values the schema allows. They may leave out some that it does not allow either.
        Raises SchemaError if there is no way to say any."""
        if schema is False:
            return [[]]
        if schema is True:
            return []
        check_keywords(schema)
        asserted = [name for name in schema if name not in ANNOTATIONS]
        with self._deeper():
            found = [conjunction for name in asserted for conjunction in self._negated_keyword(name, schema)]
        if asserted and not found:
            raise SchemaError(keyword, f"cannot be enforced with {asserted[0]!r} in it")
        return found

    def _negated_keyword(self, name: str, schema: Mapping[str, Any]) -> list[Conjunction]:
        value = schema[name]
        match name:
            case "$ref":
                return self._negated(self._document.resolve(value), "not")
            case "not":
                return [[value]]
            case "anyOf":
                return [[{"not": one} for one in value]]
            case "allOf":
                return [conjunction for one in value for conjunction in self._negated(one, "not")]
            case "properties":
                return [
                    [Part(type="object", required=[key], properties={key: {"not": one}})] for key, one in value.items()
                ]
            case "required":
                return [[Part({"type": "object", "~absent": [key]})] for key in value]
        return [[part] for part in negated_assertion(name, schema)]


def negated_assertion(name: str, schema: Mapping[str, Any]) -> list[Part]:
    """Parts that hold for values that fail one keyword."""
    value = schema[name]
    match name:
        case "type":
            return [Part({"~types": ALL_TYPES - allowed_types(value)})]
        case "enum":
            return [Part({"~notEnum": value})]
        case "const":
            return [Part({"~notEnum": [value]})]
        case "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" if not isinstance(value, bool):
            opposite = {
                "minimum": "exclusiveMaximum",
                "maximum": "exclusiveMinimum",
                "exclusiveMinimum": "maximum",
                "exclusiveMaximum": "minimum",
            }[name]
            return [Part({"type": "number", opposite: value})]
        case "minLength" | "minItems" | "minProperties":
            opposite = "max" + name[3:]
            return [Part({"type": _type_with(name), opposite: value - 1})] if value >= 1 else []
        case "maxLength" | "maxItems" | "maxProperties":
            return [Part({"type": _type_with(name), "min" + name[3:]: value + 1})]
        case "pattern":
            return [Part({"type": "string", "~notPattern": [value]})]
        case "items" if not isinstance(value, list) and "prefixItems" not in schema:
            return [Part({"type": "array", "contains": {"not": value}})]
        case "contains" if schema.get("minContains", 1) == 1:
            return [Part({"type": "array", "items": {"not": value}})]
        case "additionalProperties" | "unevaluatedProperties":
            return []
    return []


def allowed_types(value: str | Sequence[str]) -> frozenset[str]:
    names = [value] if isinstance(value, str) else value
    return frozenset().union(*(TYPES[name] for name in names))


def types_of(parts: Iterable[Part]) -> frozenset[str]:
    """The types of the values that are meant: where none is told, those that the other keywords are about."""
    allowed, hinted = ALL_TYPES, frozenset[str]()
    is_told = False
    for part in parts:
        if "type" in part:
            allowed &= allowed_types(part["type"])
            is_told = True
        if "~types" in part:
            allowed &= part["~types"]
            is_told = True
        for name, keywords in KEYWORDS_OF_TYPE.items():
            if not keywords.isdisjoint(part) or (name == "object" and "~absent" in part):
                hinted |= TYPES[name]
    if is_told or not hinted & allowed:
        return allowed
    return allowed & hinted


def _type_with(keyword: str) -> str:
    return next(name for name, keywords in KEYWORDS_OF_TYPE.items() if keyword in keywords)


def _dependent(name: str, schema: Any) -> list[Conjunction]:
    return [[Part({"~absent": [name]})], [Part(required=[name]), schema]]
