"""Expressions in the EBNF that xgrammar reads."""

from __future__ import annotations

from collections.abc import Mapping

from replicas.grammar.classes import SURROGATES, complement, union
from replicas.grammar.expression import Alt, Chars, Expression, Ref, Repeat, Seq, Text
from replicas.grammar.unroll import unroll


def print_rules(rules: Mapping[str, Expression], root: str) -> str:
    """The grammar as text; its first rule is called `root`, a name that no other rule may have."""
    lines = [f"root ::= {print_expression(Ref(root))}"]
    lines += [f"{name} ::= {print_expression(body)}" for name, body in unroll(rules).items()]
    return "\n".join(lines) + "\n"


def print_expression(expression: Expression) -> str:
    match expression:
        case Text(text):
            return '"' + "".join(map(_in_text, text)) + '"'
        case Chars():
            return "[" + _ranges(expression) + "]"
        case Ref(name):
            return name
        case Seq(parts):
            return "(" + " ".join(map(print_expression, parts)) + ")"
        case Alt(options):
            return "(" + " | ".join(map(print_expression, options)) + ")"
        case Repeat(Chars() as part, least, most):
            # xgrammar counts characters of a class that is written as what it excludes; others it would write out.
            return "[^" + _ranges(union((complement(part), Chars((SURROGATES,))))) + "]" + _count(least, most)
        case Repeat(part, least, most):
            return print_expression(part) + _count(least, most)


def _count(least: int, most: int | None) -> str:
    if most is None:
        return {0: "*", 1: "+"}.get(least, f"{{{least},}}")
    return "?" if (least, most) == (0, 1) else f"{{{least},{most}}}"


def _ranges(one: Chars) -> str:
    return "".join(_range(low, high) for low, high in one.ranges)


def _range(low: int, high: int) -> str:
    return _in_class(low) if low == high else f"{_in_class(low)}-{_in_class(high)}"


def _in_class(code: int) -> str:
    return chr(code) if code < 0x80 and chr(code).isalnum() else _escape(code)


def _in_text(character: str) -> str:
    code = ord(character)
    return character if 0x20 <= code < 0x7F and character not in '"\\' else _escape(code)


def _escape(code: int) -> str:
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
