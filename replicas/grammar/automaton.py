"""Deterministic automata, for what expressions alone cannot say: texts that several patterns match at once, that have a
certain length, or that a pattern does not match.

Automata read symbols: the pieces into which the classes of all expressions at hand cut the characters. States come into
being as they are reached (subset construction, Rabin and Scott 1959).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from replicas.grammar.classes import ANY
from replicas.grammar.expression import Alt, Chars, Expression, Range, Ref, Repeat, Seq, Text, chars, children

MAX_NODES = 20_000
MAX_STATES = 2_000


class TooComplexError(ValueError):
    """Patterns, lengths and names that together have too many states."""


class Automaton(Protocol):
    """`step` gives None where no text can follow."""

    start: Hashable

    def step(self, state: Hashable, symbol: int) -> Hashable | None: ...

    def accepts(self, state: Hashable) -> bool: ...


def alphabet(expressions: Iterable[Expression]) -> list[Range]:
    """Symbols: ranges of code points whose characters no expression tells apart."""
    cuts = {edge for low, high in ANY.ranges for edge in (low, high + 1)}
    stack = list(expressions)
    while stack:
        one = stack.pop()
        if isinstance(one, Chars):
            cuts.update(edge for low, high in one.ranges for edge in (low, high + 1))
        elif isinstance(one, Text):
            cuts.update(edge for character in one.text for edge in (ord(character), ord(character) + 1))
        stack += children(one)
    edges = sorted(cuts)
    pieces = [(low, high - 1) for low, high in pairwise(edges)]
    return [piece for piece in pieces if any(low <= piece[0] <= high for low, high in ANY.ranges)]


@dataclass(slots=True)
class _Nodes:
    """A nondeterministic automaton with empty moves (Thompson 1968)."""

    moves: list[list[tuple[Chars, int]]] = field(default_factory=list)
    empty: list[list[int]] = field(default_factory=list)

    def new(self) -> int:
        if len(self.moves) >= MAX_NODES:
            raise TooComplexError("it is too large with its repetitions written out")
        self.moves.append([])
        self.empty.append([])
        return len(self.moves) - 1

    def add(self, expression: Expression, start: int) -> int:
        """The node where the expression's texts end that begin at `start`."""
        match expression:
            case Chars():
                end = self.new()
                self.moves[start].append((expression, end))
                return end
            case Text(text):
                for character in text:
                    start = self.add(Chars(((ord(character), ord(character)),)), start)
                return start
            case Seq(parts):
                for part in parts:
                    start = self.add(part, start)
                return start
            case Alt(options):
                end = self.new()
                for option in options:
                    self.empty[self.add(option, start)].append(end)
                return end
            case Repeat(part, least, most):
                return self._add_repeated(part, least, most, start)
            case Ref():
                raise AssertionError("an automaton has no rules")

    def _add_repeated(self, part: Expression, least: int, most: int | None, start: int) -> int:
        for _ in range(least):
            start = self.add(part, start)
        end = self.new()
        self.empty[start].append(end)
        if most is None:
            loop = self.new()
            self.empty[start].append(loop)
            self.empty[self.add(part, loop)] += (loop, end)
            return end
        for _ in range(most - least):
            first = self.new()
            self.empty[start].append(first)
            start = self.add(part, first)
            self.empty[start].append(end)
        return end


class Matching:
    """Texts that an expression without references matches from end to end."""

    def __init__(self, expression: Expression, symbols: Sequence[Range]) -> None:
        self._nodes = _Nodes()
        first = self._nodes.new()
        self._end = self._nodes.add(expression, first)
        self._symbols = symbols
        self._known: dict[tuple[Hashable, int], frozenset[int] | None] = {}
        self.start: Hashable = self._closure({first})

    def step(self, state: Hashable, symbol: int) -> Hashable | None:
        key = (state, symbol)
        if key not in self._known:
            assert isinstance(state, frozenset)
            code = self._symbols[symbol][0]
            reached = {
                end
                for node in state
                for one, end in self._nodes.moves[node]
                if any(low <= code <= high for low, high in one.ranges)
            }
            self._known[key] = self._closure(reached) if reached else None
        return self._known[key]

    def accepts(self, state: Hashable) -> bool:
        assert isinstance(state, frozenset)
        return self._end in state

    def _closure(self, nodes: set[int]) -> frozenset[int]:
        stack, reached = list(nodes), set(nodes)
        while stack:
            for node in self._nodes.empty[stack.pop()]:
                if node not in reached:
                    reached.add(node)
                    stack.append(node)
        return frozenset(reached)


class Without:
    """All texts but those of another automaton."""

    def __init__(self, other: Automaton) -> None:
        self._other = other
        self.start: Hashable = (other.start,)

    def step(self, state: Hashable, symbol: int) -> Hashable | None:
        assert isinstance(state, tuple)
        after = self._other.step(state[0], symbol) if state else None
        return () if after is None else (after,)

    def accepts(self, state: Hashable) -> bool:
        assert isinstance(state, tuple)
        return not state or not self._other.accepts(state[0])


class Together:
    """Texts that all of several automata accept."""

    def __init__(self, automata: Sequence[Automaton]) -> None:
        self._automata = automata
        self.start: Hashable = tuple(one.start for one in automata)

    def step(self, state: Hashable, symbol: int) -> Hashable | None:
        assert isinstance(state, tuple)
        after = []
        for one, its_state in zip(self._automata, state, strict=True):
            its_next = one.step(its_state, symbol)
            if its_next is None:
                return None
            after.append(its_next)
        return tuple(after)

    def accepts(self, state: Hashable) -> bool:
        assert isinstance(state, tuple)
        return all(one.accepts(its_state) for one, its_state in zip(self._automata, state, strict=True))


class OfLength:
    """Texts of `least` to `most` characters."""

    start: Hashable = 0

    def __init__(self, least: int, most: int | None) -> None:
        self._least = least
        self._most = most

    def step(self, state: Hashable, symbol: int) -> Hashable | None:
        assert isinstance(state, int)
        if self._most is None:
            return min(state + 1, self._least)
        return state + 1 if state < self._most else None

    def accepts(self, state: Hashable) -> bool:
        assert isinstance(state, int)
        return state >= self._least


class Multiples:
    """Whole numbers in decimal that can be divided by `divisor`; a minus sign changes nothing."""

    start: Hashable = 0

    def __init__(self, divisor: int, symbols: Sequence[Range]) -> None:
        self._divisor = divisor
        self._digits = [int(chr(low)) if chr(low) in "0123456789" else None for low, _ in symbols]

    def step(self, state: Hashable, symbol: int) -> Hashable | None:
        assert isinstance(state, int)
        digit = self._digits[symbol]
        return state if digit is None else (state * 10 + digit) % self._divisor

    def accepts(self, state: Hashable) -> bool:
        return state == 0


def accepts_text(automaton: Automaton, symbols: Sequence[Range], text: str) -> bool:
    state: Hashable | None = automaton.start
    for character in text:
        code = ord(character)
        symbol = next((index for index, (low, high) in enumerate(symbols) if low <= code <= high), None)
        state = None if symbol is None else automaton.step(state, symbol)
        if state is None:
            return False
    return automaton.accepts(state)


def explore(automaton: Automaton, symbols: Sequence[Range]) -> dict[Hashable, dict[Hashable, Chars]]:
    """For each state that can be reached from the start and from which an accepted text can be completed: the states
    that follow, and by which characters. Empty if there is no such text. Raises TooComplexError."""
    follow: dict[Hashable, dict[Hashable, list[Range]]] = {automaton.start: {}}
    stack = [automaton.start]
    while stack:
        state = stack.pop()
        for symbol, piece in enumerate(symbols):
            after = automaton.step(state, symbol)
            if after is None:
                continue
            follow[state].setdefault(after, []).append(piece)
            if after not in follow:
                if len(follow) >= MAX_STATES:
                    raise TooComplexError("its patterns and lengths together are too complex")
                follow[after] = {}
                stack.append(after)
    useful = _leading_to_the_end(automaton, follow)
    return {
        state: {after: chars(pieces) for after, pieces in moves.items() if after in useful}
        for state, moves in follow.items()
        if state in useful
    }


def _leading_to_the_end(automaton: Automaton, follow: dict[Hashable, dict[Hashable, list[Range]]]) -> set[Hashable]:
    before: dict[Hashable, list[Hashable]] = {}
    for state, moves in follow.items():
        for after in moves:
            before.setdefault(after, []).append(state)
    useful = {state for state in follow if automaton.accepts(state)}
    stack = list(useful)
    while stack:
        for state in before.get(stack.pop(), ()):
            if state not in useful:
                useful.add(state)
                stack.append(state)
    return useful
