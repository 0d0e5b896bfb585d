"""A grammar in the making: rules by name, each translated once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence

from replicas.grammar.automaton import Automaton, TooComplexError, explore
from replicas.grammar.expression import EMPTY, NOTHING, Chars, Expression, Range, Ref, Text, alt, repeat, seq

MAX_RULES = 5_000


class Rules:
    def __init__(self) -> None:
        self.bodies: dict[str, Expression] = {}
        self._names: dict[Hashable, str] = {}
        self._pending: deque[tuple[str, Callable[[], Expression]]] = deque()

    def rule(self, key: Hashable, body: Callable[[], Expression]) -> Ref:
        """The rule that is known by `key`. Its body is made when `complete` is called, and may refer to itself."""
        if (name := self._names.get(key)) is None:
            name = self._names[key] = self._new_name()
            self._pending.append((name, body))
        return Ref(name)

    def inline(self, body: Expression) -> Expression:
        """A rule for an expression that stands in several places, or the expression if it is short."""
        if isinstance(body, (Ref, Text)) or body == NOTHING:
            return body
        name = self._new_name()
        self.bodies[name] = body
        return Ref(name)

    def complete(self) -> None:
        """Make the bodies of all rules. Those that bodies ask for come after them, however deep."""
        while self._pending:
            name, body = self._pending.popleft()
            self.bodies[name] = body()

    def automaton(
        self, automaton: Automaton, symbols: Sequence[Range], written: Callable[[Chars], Expression]
    ) -> Expression:
        """A rule for each state of an automaton. `written` says how its characters are spelled. Raises
        TooComplexError."""
        states = explore(automaton, symbols)
        if not states:
            return NOTHING
        names = {state: self._new_name() for state in states}
        for state, moves in states.items():
            loop = moves.get(state)
            ways = [seq(written(by), Ref(names[after])) for after, by in moves.items() if after != state]
            onward = alt(*ways, *([EMPTY] if automaton.accepts(state) else []))
            self.bodies[names[state]] = seq(repeat(written(loop), 0, None), onward) if loop is not None else onward
        return Ref(names[automaton.start])

    def _new_name(self) -> str:
        if len(self.bodies) >= MAX_RULES:
            raise TooComplexError("it needs too many rules")
        name = f"r{len(self.bodies)}"
        self.bodies[name] = NOTHING
        return name
