"""Arrays: first the items that have places of their own, then those that `contains` asks for, then the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from replicas.grammar.expression import EMPTY, NOTHING, Expression, alt, optional, repeat, seq
from replicas.grammar.schema.facts import count_bounds
from replicas.grammar.schema.finite import finite_values
from replicas.grammar.schema.keywords import SchemaError
from replicas.grammar.schema.logic import Conjunction, Logic, Part
from replicas.grammar.schema.writer import Writer
from replicas.grammar.strings import literal


class ArrayRules:
    """What the parts of an alternative say about an array."""

    def __init__(self, parts: Sequence[Part], logic: Logic) -> None:
        self._parts = parts
        self._logic = logic
        self.least, self.most = count_bounds(parts, "Items")
        self._prefixes = [_prefix(part) for part in parts]
        self.num_placed = max((len(prefix) for prefix in self._prefixes), default=0)

    def item(self, place: int) -> Conjunction:
        """What holds for the item at a place."""
        found = []
        for part, prefix in zip(self._parts, self._prefixes, strict=True):
            one = prefix[place] if place < len(prefix) else _rest(part)
            if one is not True:
                found.append(one)
        return found

    def written(self, writer: Writer) -> Expression:
        """Raises SchemaError, PatternError and TooComplexError."""
        wanted, num_wanted = self._contained()
        least = max(self.least, self.num_placed + num_wanted if num_wanted else 0)
        if any(part.get("uniqueItems") for part in self._parts) and (self.most is None or self.most > 1):
            return self._unique(least, [*wanted], num_wanted, writer)
        rest = writer.value(self.item(self.num_placed))
        most = self._most_written(least)
        after: Expression = NOTHING if most is not None and most < least else EMPTY
        num_rest = max(0, least - self.num_placed - num_wanted)
        most_rest = None if most is None else most - self.num_placed - num_wanted
        if most_rest is None or most_rest > 0:
            after = self._tail(rest, num_rest, most_rest, self.num_placed + num_wanted > 0, writer)
        items = [writer.value(self.item(place)) for place in range(self.num_placed)]
        items += [writer.value([*self.item(self.num_placed), *wanted])] * num_wanted
        for place in range(len(items) - 1, -1, -1):
            if most is not None and place >= most:
                after = EMPTY
                continue
            entry = seq(writer.comma if place else EMPTY, items[place], after)
            after = entry if place < least else writer.rules.inline(optional(entry))
        return writer.brackets(after)

    def _most_written(self, least: int) -> int | None:
        """Items with places end an array, unless the schema tells of more or asks for more."""
        if self.num_placed and least <= self.num_placed and not any(map(_tells_rest, self._parts)):
            return self.num_placed if self.most is None else min(self.most, self.num_placed)
        return self.most

    def _tail(self, rest: Expression, least: int, most: int | None, is_begun: bool, writer: Writer) -> Expression:
        if most is not None and most < least:
            return NOTHING
        more = seq(writer.comma, rest)
        if is_begun:
            return repeat(more, least, most)
        several = seq(rest, repeat(more, max(0, least - 1), None if most is None else most - 1))
        return several if least else optional(several)

    def _contained(self) -> tuple[Conjunction, int]:
        """What `contains` asks for, and how often."""
        asking = [part for part in self._parts if "contains" in part and part.get("minContains", 1)]
        for part in self._parts:
            most = part.get("maxContains")
            if "contains" in part and most is not None and (self.most is None or self.most > most):
                raise SchemaError("maxContains", "is only supported where maxItems is no more")
        if not asking:
            return [], 0
        if len(asking) > 1:
            raise SchemaError("contains", "is only supported once for an array")
        return [asking[0]["contains"]], int(asking[0].get("minContains", 1))

    def _unique(self, least: int, wanted: list[Any], num_wanted: int, writer: Writer) -> Expression:
        """All different is what items in an order are: each of the possible ones once or not at all."""
        if self.num_placed or num_wanted:
            raise SchemaError("uniqueItems", "is not supported beside prefixItems or contains")
        values = finite_values(self._logic, self.item(0))
        if values is None:
            raise SchemaError("uniqueItems", "is only supported for items of an enum or another small set")
        most = len(values) if self.most is None else min(self.most, len(values))
        if least > most:
            return NOTHING
        tails: dict[int, Expression] = {
            count: EMPTY if count >= least else NOTHING for count in range(min(most, len(values)) + 1)
        }
        for index in range(len(values) - 1, -1, -1):
            entry = literal(values[index])
            tails = {
                count: writer.rules.inline(
                    alt(
                        seq(writer.comma if count else EMPTY, entry, tails[count + 1]) if count < most else NOTHING,
                        tails[count],
                    )
                )
                for count in range(min(most, index) + 1)
            }
        return writer.brackets(tails[0])


def _prefix(part: Part) -> list[Any]:
    items = part.get("items")
    found: list[Any] = items if isinstance(items, list) else part.get("prefixItems", [])
    return found


def _rest(part: Part) -> Any:
    """What holds for items behind those with places."""
    if isinstance(part.get("items"), list):
        return part.get("additionalItems", True)
    if "items" in part:
        return part["items"]
    return part.get("unevaluatedItems", True)


def _tells_rest(part: Part) -> bool:
    return ("items" in part and not isinstance(part["items"], list)) or "additionalItems" in part
