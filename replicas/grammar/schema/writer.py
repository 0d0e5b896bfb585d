"""How values are put together in JSON text: commas, colons, brackets, and the white space that may stand around them.

There is at most one space, or one line break with an indentation: models like to write either, and none can write
blanks for ever.
"""

from __future__ import annotations

from collections.abc import Callable

from replicas.grammar.expression import EMPTY, NOTHING, Expression, Text, alt, char_set, repeat, seq
from replicas.grammar.rules import Rules
from replicas.grammar.schema.logic import Conjunction

MAX_INDENT = 20

BLANK = alt(EMPTY, Text(" "), seq(Text("\n"), repeat(char_set(" "), 0, MAX_INDENT)))


class Writer:
    """`value` gives the rule for what a conjunction of schemas allows."""

    def __init__(self, rules: Rules, value: Callable[[Conjunction], Expression]) -> None:
        self.rules = rules
        self.value = value
        self._blank = rules.rule("blank", lambda: BLANK)
        self.comma = seq(Text(","), self._blank)
        self.colon = seq(Text(":"), alt(EMPTY, Text(" ")))

    def braces(self, inside: Expression) -> Expression:
        return self._around("{", inside, "}")

    def brackets(self, inside: Expression) -> Expression:
        return self._around("[", inside, "]")

    def _around(self, opening: str, inside: Expression, closing: str) -> Expression:
        if inside == NOTHING:
            return NOTHING
        return seq(Text(opening), self._blank, inside, self._blank, Text(closing))
