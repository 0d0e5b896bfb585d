"""Grammars as trees: what schemas and patterns are translated to, before they are printed in xgrammar's EBNF.

An expression stands for a set of texts. `NOTHING` is the empty set: an alternative that holds it in a sequence can
never be completed and is pruned, so that no answer is led into it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

Range = tuple[int, int]  # of code points, both included


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of these ranges, which are sorted and apart."""

    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Ref:
    name: str


@dataclass(frozen=True, slots=True)
class Seq:
    parts: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Alt:
    options: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    part: Expression
    least: int
    most: int | None


Expression = Chars | Text | Ref | Seq | Alt | Repeat

EMPTY = Text("")
NOTHING = Alt(())


def chars(ranges: Iterable[Range]) -> Chars:
    """Ranges in any order, joined where they touch."""
    joined: list[Range] = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
        else:
            joined.append((low, high))
    return Chars(tuple(joined))


def char_set(characters: str) -> Chars:
    return chars((ord(character), ord(character)) for character in characters)


def seq(*parts: Expression) -> Expression:
    flat: list[Expression] = []
    for part in parts:
        for one in part.parts if isinstance(part, Seq) else (part,):
            if one == NOTHING:
                return NOTHING
            if isinstance(one, Text) and flat and isinstance(flat[-1], Text):
                flat[-1] = Text(flat[-1].text + one.text)
            elif one != EMPTY:
                flat.append(one)
    if len(flat) == 1:
        return flat[0]
    return Seq(tuple(flat)) if flat else EMPTY


def alt(*options: Expression) -> Expression:
    flat: dict[Expression, None] = {}
    for option in options:
        flat.update(dict.fromkeys(option.options if isinstance(option, Alt) else (option,)))
    return next(iter(flat)) if len(flat) == 1 else Alt(tuple(flat))


def repeat(part: Expression, least: int, most: int | None) -> Expression:
    if most == 0 or part == EMPTY:
        return EMPTY
    if part == NOTHING:
        return EMPTY if least == 0 else NOTHING
    return part if least == most == 1 else Repeat(part, least, most)


def optional(part: Expression) -> Expression:
    return repeat(part, 0, 1)


def children(expression: Expression) -> tuple[Expression, ...]:
    match expression:
        case Seq(parts) | Alt(parts):
            return parts
        case Repeat(part):
            return (part,)
    return ()


def size(expression: Expression) -> int:
    """How many characters and references an expression has with its repetitions written out."""
    match expression:
        case Text(text):
            return len(text)
        case Seq(parts) | Alt(parts):
            return sum(map(size, parts))
        case Repeat(part, least, most):
            return size(part) * max(least, most or 1)
    return 1


def references(expression: Expression) -> Iterator[str]:
    """The names of all rules that an expression mentions."""
    stack = [expression]
    while stack:
        one = stack.pop()
        if isinstance(one, Ref):
            yield one.name
        stack += children(one)


def prune(rules: Mapping[str, Expression], root: str) -> dict[str, Expression]:
    """Those rules that the root reaches, without alternatives that can never be completed. Without a root if it can
    never be completed itself."""
    productive: set[str] = set()
    changed = True
    while changed:
        changed = False
        for name, body in rules.items():
            if name not in productive and _is_productive(body, productive):
                productive.add(name)
                changed = True
    pruned: dict[str, Expression] = {}
    wanted = [root] if root in productive else []
    while wanted:
        name = wanted.pop()
        if name not in pruned:
            pruned[name] = _pruned(rules[name], productive)
            wanted += references(pruned[name])
    return pruned


def _is_productive(expression: Expression, productive: set[str]) -> bool:
    match expression:
        case Ref(name):
            return name in productive
        case Chars(ranges):
            return bool(ranges)
        case Seq(parts):
            return all(_is_productive(part, productive) for part in parts)
        case Alt(options):
            return any(_is_productive(option, productive) for option in options)
        case Repeat(part, least):
            return least == 0 or _is_productive(part, productive)
    return True


def _pruned(expression: Expression, productive: set[str]) -> Expression:
    if not _is_productive(expression, productive):
        return NOTHING
    match expression:
        case Seq(parts):
            return seq(*(_pruned(part, productive) for part in parts))
        case Alt(options):
            return alt(*(_pruned(option, productive) for option in options if _is_productive(option, productive)))
        case Repeat(part, least, most):
            return repeat(_pruned(part, productive), least, most)
    return expression
