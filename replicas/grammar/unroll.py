"""Bounded repetitions inside patterns, written out as chains of rules.

xgrammar tells the masks of a rule's states in advance, but counts repetitions of a group while it matches: then tokens
that reach over the group's end are tried one by one, in every step. A chain of rules has a state for each repetition.
"""

from __future__ import annotations

from collections.abc import Mapping

from replicas.grammar.expression import (
    EMPTY,
    Alt,
    Chars,
    Expression,
    Ref,
    Repeat,
    Seq,
    alt,
    optional,
    references,
    repeat,
    seq,
    size,
)

MOST_UNROLLED = 700  # characters of a repetition that is written out
MOST_NESTED = 24


def unroll(rules: Mapping[str, Expression]) -> dict[str, Expression]:
    """The rules, and those of the chains."""
    unrolling = _Unrolling()
    for name, body in rules.items():
        unrolling.rules[name] = unrolling.expression(body)
    return unrolling.rules


class _Unrolling:
    def __init__(self) -> None:
        self.rules: dict[str, Expression] = {}
        self._num_chains = 0

    def expression(self, one: Expression) -> Expression:
        match one:
            case Seq(parts):
                return seq(*map(self.expression, parts))
            case Alt(options):
                return alt(*map(self.expression, options))
            case Repeat(part, least, most) if not isinstance(part, Chars):
                if most is None or most <= 1 or size(one) > MOST_UNROLLED or any(references(part)):
                    return repeat(self.expression(part), least, most)
                return self._chain(self.expression(_uncounted(part)), least, most)
        return one

    def _chain(self, part: Expression, least: int, most: int) -> Expression:
        after: Expression = EMPTY
        for index in reversed(range(most)):
            name = f"c{self._num_chains}n{index}"
            self.rules[name] = alt(seq(part, after), *([EMPTY] if index >= least else []))
            after = Ref(name)
        self._num_chains += 1
        return after


def _uncounted(one: Expression) -> Expression:
    """With repetitions of single characters written out, where they are not too many."""
    match one:
        case Seq(parts):
            return seq(*map(_uncounted, parts))
        case Alt(options):
            return alt(*map(_uncounted, options))
        case Repeat(Chars() as part, least, most) if most is not None and most <= MOST_NESTED:
            tail: Expression = EMPTY
            for _ in range(most - least):
                tail = optional(seq(part, tail))
            return seq(*[part] * least, tail)
    return one
