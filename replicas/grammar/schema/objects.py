"""Objects: named properties in the schema's order, then those that patterns and additionalProperties allow.

A name that is not the schema's own may be written twice, as JSON allows; the last value counts, and is as valid as the
first. minProperties therefore counts at most one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from replicas.grammar.expression import EMPTY, NOTHING, Expression, Text, alt, optional, repeat, seq
from replicas.grammar.pattern import search_expression
from replicas.grammar.schema.facts import count_bounds, listed_values, string_rules
from replicas.grammar.schema.keywords import SchemaError
from replicas.grammar.schema.logic import Conjunction, Logic, Part
from replicas.grammar.schema.writer import Writer
from replicas.grammar.strings import StringRules, literal


class ObjectRules:
    """What the parts of an alternative say about an object."""

    def __init__(self, parts: Sequence[Part], logic: Logic) -> None:
        self._parts = parts
        self._logic = logic
        absent = {name for part in parts for name in part.get("~absent", ())}
        self.required = dict.fromkeys(name for part in parts for name in part.get("required", ()))
        declared = dict.fromkeys(name for part in parts for name in part.get("properties", ()))
        self.names = [name for name in {**declared, **self.required} if name not in absent or name in self.required]
        self._absent = absent
        self.least, self.most = count_bounds(parts, "Properties")

    def forbids(self, name: str) -> bool:
        """Whether no valid object has this property."""
        return name in self._absent or any(schema is False for schema in self.value_of(name))

    def value_of(self, name: str) -> Conjunction:
        """What holds for the value of a property."""
        if name in self._absent:
            return [False]
        found: list[Any] = []
        for part in self._parts:
            ours = [part["properties"][name]] if name in part.get("properties", {}) else []
            ours += [one for pattern, one in part.get("patternProperties", {}).items() if _matches(pattern, name)]
            if not ours and "additionalProperties" in part:
                ours = [part["additionalProperties"]]
            found += ours
        return found

    def written(self, writer: Writer) -> Expression:
        """Raises SchemaError, PatternError and TooComplexError."""
        others = alt(*(self._entry(names, value, writer) for names, value in self._others(writer)))
        if self.least > len(self.names) + (others != NOTHING):
            raise SchemaError("minProperties", f"is {self.least}, which asks for more names than the schema has")
        if self.most is None and self.least <= len(self.required) + (others != NOTHING and not self.names):
            return self._uncounted(others, writer)
        return self._counted(others, writer)

    def _uncounted(self, others: Expression, writer: Writer) -> Expression:
        """Only whether something was written before matters, for the comma."""
        more = repeat(seq(writer.comma, others), 0, None)
        first_others = seq(others, more) if self.least and not self.names else optional(seq(others, more))
        begun, fresh = more, first_others
        for name in reversed(self.names):
            entry = self._named(name, writer)
            needed = name in self.required
            fresh, begun = (
                writer.rules.inline(alt(seq(entry, begun), *(() if needed else (fresh,)))),
                writer.rules.inline(alt(seq(writer.comma, entry, begun), *(() if needed else (begun,)))),
            )
        return writer.braces(fresh)

    def _counted(self, others: Expression, writer: Writer) -> Expression:
        """A rule for each name and number of names written before it."""
        ceiling = self.least if self.most is None else self.most
        tails = {count: self._tail(count, others, writer) for count in range(min(ceiling, len(self.names)) + 1)}
        for index in range(len(self.names) - 1, -1, -1):
            entry = self._named(self.names[index], writer)
            tails = {
                count: self._counted_step(count, index, entry, tails, writer)
                for count in range(min(ceiling, index) + 1)
            }
        return writer.braces(tails[0])

    def _counted_step(
        self, count: int, index: int, entry: Expression, tails: dict[int, Expression], writer: Writer
    ) -> Expression:
        after = count + 1 if self.most is not None else min(count + 1, self.least)
        comma = writer.comma if count else EMPTY
        options = [seq(comma, entry, tails[after])] if after in tails else []
        if self.names[index] not in self.required:
            options.append(tails[count])
        return writer.rules.inline(alt(*options))

    def _tail(self, count: int, others: Expression, writer: Writer) -> Expression:
        """What may follow the named properties, `count` of which were written."""
        least = max(0, self.least - count)
        most = None if self.most is None else self.most - count
        if least > 1 or (most is not None and most < least) or (others == NOTHING and least > 0):
            return NOTHING
        if others == NOTHING or most == 0:
            return EMPTY
        if count:
            return repeat(seq(writer.comma, others), least, most)
        several = seq(others, repeat(seq(writer.comma, others), 0, None if most is None else most - 1))
        return several if least else optional(several)

    def _named(self, name: str, writer: Writer) -> Expression:
        if not self._name_is_allowed(name):
            return NOTHING
        return seq(literal(name), writer.colon, writer.value(self.value_of(name)))

    def _entry(self, names: Expression, value: Conjunction, writer: Writer) -> Expression:
        return seq(names, writer.colon, writer.value(value))

    def _others(self, writer: Writer) -> list[tuple[Expression, Conjunction]]:
        """Names that are not the schema's own, as JSON strings, each with what holds for their values."""
        patterns = list(dict.fromkeys(pattern for part in self._parts for pattern in part.get("patternProperties", {})))
        found: list[tuple[Expression, Conjunction]] = []
        for pattern in patterns:
            rivals = [search_expression(other) for other in patterns if other != pattern]
            value: list[Any] = []
            for part in self._parts:
                if pattern in part.get("patternProperties", {}):
                    value.append(part["patternProperties"][pattern])
                elif "additionalProperties" in part:
                    value.append(part["additionalProperties"])
            if not any(one is False for one in value):
                found.append((self._free_names([search_expression(pattern)], rivals, writer), value))
        if self._is_open:
            value = [part["additionalProperties"] for part in self._parts if "additionalProperties" in part]
            excluded = [search_expression(pattern) for pattern in patterns]
            found.append((self._free_names([], excluded, writer), value))
        return found

    @cached_property
    def _is_open(self) -> bool:
        """Whether names are written that the schema does not tell: if it says that there may be such, or tells none."""
        if any(part.get("additionalProperties") is False for part in self._parts):
            return False
        if any(
            part.get("unevaluatedProperties", True) is not True and "additionalProperties" not in part
            for part in self._parts
        ):
            return False
        telling = [part for part in self._parts if "properties" in part or "patternProperties" in part]
        if not telling or self.least > len(self.names):
            return True
        return all("additionalProperties" in part for part in telling)

    def _free_names(self, matches: list[Expression], excludes: list[Expression], writer: Writer) -> Expression:
        taken = [*self.names, *self._absent]
        excludes = [*excludes, *([alt(*map(Text, taken))] if taken else [])]
        options = []
        for rules in self._name_rules():
            both = StringRules((*matches, *rules.matches), (*excludes, *rules.excludes), rules.least, rules.most)
            options.append(both.quoted(writer.rules))
        return alt(*options)

    def _name_rules(self) -> list[StringRules]:
        """What propertyNames says, as alternatives."""
        conjunction = [part["propertyNames"] for part in self._parts if "propertyNames" in part]
        if not conjunction:
            return [StringRules()]
        found = []
        for parts in self._logic.alternatives([*conjunction, Part(type="string")]):
            rules = string_rules(parts)
            listed = listed_values(parts)
            if listed is not None:
                texts = [Text(value) for value in listed if isinstance(value, str)]
                rules = StringRules((*rules.matches, alt(*texts)), rules.excludes, rules.least, rules.most)
            found.append(rules)
        return found

    def _name_is_allowed(self, name: str) -> bool:
        from replicas.grammar.schema.validity import is_valid

        return all(
            is_valid(self._logic, part["propertyNames"], name) for part in self._parts if "propertyNames" in part
        )


def _matches(pattern: str, name: str) -> bool:
    return StringRules((search_expression(pattern),)).accepts(name)
