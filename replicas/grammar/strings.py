"""Strings as JSON spells them: quoted, with as few escapes as possible. No `\\uXXXX` stands for a character that could
stand for itself, so a text takes no more tokens than it needs, and its length is the number of its characters."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from replicas.grammar.automaton import Automaton, Matching, OfLength, Together, Without, accepts_text, alphabet
from replicas.grammar.classes import ANY, contains, intersection
from replicas.grammar.expression import (
    NOTHING,
    Alt,
    Chars,
    Expression,
    Repeat,
    Seq,
    Text,
    alt,
    chars,
    repeat,
    seq,
)
from replicas.grammar.rules import Rules

QUOTE = Text('"')

_ESCAPED = {0x22: '\\"', 0x5C: "\\\\", 0x08: "\\b", 0x0C: "\\f", 0x0A: "\\n", 0x0D: "\\r", 0x09: "\\t"}
_PLAIN = intersection(ANY, chars([(0x20, 0x21), (0x23, 0x5B), (0x5D, 0x7E), (0x80, 0x10FFFF)]))
_RARE = [code for code in (*range(0x20), 0x7F) if code not in _ESCAPED]


def written(one: Chars) -> Expression:
    """A character of the set, inside quotes. Control characters that need `\\u00XX` are left out of sets that have
    others."""
    plain = intersection(one, _PLAIN)
    options: list[Expression] = [plain] if plain.ranges else []
    options += [Text(spelling) for code, spelling in _ESCAPED.items() if contains(one, code)]
    if not options:
        options = [Text(f"\\u{code:04x}") for code in _RARE if contains(one, code)]
    return alt(*options)


def written_expression(expression: Expression) -> Expression:
    match expression:
        case Chars():
            return written(expression)
        case Text(text):
            return Text(json.dumps(text, ensure_ascii=False)[1:-1])
        case Seq(parts):
            return seq(*map(written_expression, parts))
        case Alt(options):
            return alt(*map(written_expression, options))
        case Repeat(part, least, most):
            return repeat(written_expression(part), least, most)
    return expression


def _least(left: int | None, right: int | None) -> int | None:
    return left if right is None else right if left is None else min(left, right)


def literal(value: object) -> Expression:
    """A JSON value, spelled in one way."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair has no other spelling
        text = json.dumps(value)
    return Text(text)


@dataclass(frozen=True, slots=True)
class StringRules:
    """What is known of a string: texts that it must match, texts that it must not match, and its length."""

    matches: tuple[Expression, ...] = ()
    excludes: tuple[Expression, ...] = ()
    least: int = 0
    most: int | None = None

    @property
    def has_length(self) -> bool:
        return self.least > 0 or self.most is not None

    def accepts(self, text: str) -> bool:
        if len(text) < self.least or (self.most is not None and len(text) > self.most):
            return False
        symbols = alphabet((*self.matches, *self.excludes))
        return all(accepts_text(Matching(one, symbols), symbols, text) for one in self.matches) and not any(
            accepts_text(Matching(one, symbols), symbols, text) for one in self.excludes
        )

    def quoted(self, rules: Rules) -> Expression:
        """The JSON string. Raises TooComplexError."""
        return seq(QUOTE, self._inside(rules), QUOTE)

    def _inside(self, rules: Rules) -> Expression:
        if self.excludes or len(self.matches) > 1:
            return self._by_automaton(rules)
        whole = self.matches[0] if self.matches else repeat(ANY, 0, None)
        if not self.has_length:
            return written_expression(whole)
        if isinstance(whole, Repeat) and isinstance(whole.part, Chars):
            return self._counted(whole.part, max(self.least, whole.least), _least(self.most, whole.most))
        return self._by_automaton(rules)

    def _counted(self, one: Chars, least: int, most: int | None) -> Expression:
        """So many characters of one set: those that stand for themselves, since counting escapes takes many states."""
        if most is not None and most < least:
            return NOTHING
        plain = intersection(one, _PLAIN)
        return repeat(plain if plain.ranges else written(one), least, most)

    def _by_automaton(self, rules: Rules) -> Expression:
        symbols = alphabet((*self.matches, *self.excludes))
        return rules.automaton(self._automaton(symbols), symbols, written)

    def _automaton(self, symbols: Sequence[tuple[int, int]]) -> Automaton:
        automata: list[Automaton] = [Matching(one, symbols) for one in self.matches]
        automata += [Without(Matching(one, symbols)) for one in self.excludes]
        if self.has_length:
            automata.append(OfLength(self.least, self.most))
        return Together(automata)
