"""Sets of characters as ranges of code points, and what the classes of regular expressions mean.

ECMA-262, which JSON Schema refers to, and Python's `re`, which its best-known validator uses, differ beyond ASCII. A
class therefore has two sets: `sure` are the characters that it holds in both, `maybe` those that it holds in either.
"""

from __future__ import annotations

from collections.abc import Iterable

from replicas.grammar.expression import Chars, Range, chars

LAST = 0x10FFFF
SURROGATES = (0xD800, 0xDFFF)


def complement(one: Chars) -> Chars:
    """All characters that are not in `one`. Surrogates are no characters."""
    gaps: list[Range] = []
    start = 0
    for low, high in chars([*one.ranges, SURROGATES]).ranges:
        if start < low:
            gaps.append((start, low - 1))
        start = high + 1
    if start <= LAST:
        gaps.append((start, LAST))
    return Chars(tuple(gaps))


def union(sets: Iterable[Chars]) -> Chars:
    return chars(piece for one in sets for piece in one.ranges)


def intersection(left: Chars, right: Chars) -> Chars:
    return complement(union((complement(left), complement(right))))


def contains(one: Chars, code: int) -> bool:
    return any(low <= code <= high for low, high in one.ranges)


ANY = complement(Chars(()))
NO_LINE_END = complement(chars([(0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)]))
DIGITS = chars([(0x30, 0x39)])
WORD = chars([(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)])
SPACE = chars([(0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0)])

_SPACE_SOMEWHERE = chars(
    [
        *((0x09, 0x0D), (0x1C, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029)),
        *((0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
    ]
)
_FIRST_OTHER_DIGIT = 0x660

# The letter of a class -> the characters that it holds for sure, and those that it may hold.
CLASSES: dict[str, tuple[Chars, Chars]] = {
    "d": (DIGITS, chars([*DIGITS.ranges, (_FIRST_OTHER_DIGIT, LAST)])),
    "w": (WORD, chars([*WORD.ranges, (0x80, LAST)])),
    "s": (SPACE, _SPACE_SOMEWHERE),
}
CLASSES |= {letter.upper(): (complement(maybe), complement(sure)) for letter, (sure, maybe) in CLASSES.items()}
