"""Numbers as JSON spells them: whole ones within bounds, decimal ones within bounds, and multiples.

Numbers that nothing bounds have at most 15 digits before the point, which a double holds exactly, so that no model
writes digits for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from math import ceil, floor

from replicas.grammar.automaton import Matching, Multiples, Together, alphabet
from replicas.grammar.classes import DIGITS
from replicas.grammar.expression import EMPTY, NOTHING, Expression, Text, alt, chars, optional, repeat, seq
from replicas.grammar.rules import Rules

WHOLE_DIGITS = 15
FRACTION_DIGITS = 6
HUGE = 10**WHOLE_DIGITS
COARSE = 10**9  # beyond it a double rounds some fractions to the next whole number
FEW, MANY = 128, 4_000  # multiples: those that are written out, and those that an automaton may tell

_WHOLE = alt(Text("0"), seq(chars([(0x31, 0x39)]), repeat(DIGITS, 0, WHOLE_DIGITS - 1)))
_FRACTION = seq(Text("."), repeat(DIGITS, 1, WHOLE_DIGITS))
_EXPONENT = seq(
    chars([(0x65, 0x65), (0x45, 0x45)]), optional(chars([(0x2B, 0x2B), (0x2D, 0x2D)])), repeat(DIGITS, 1, 2)
)
ANY_INTEGER = seq(optional(Text("-")), _WHOLE)
ANY_NUMBER = seq(optional(Text("-")), _WHOLE, optional(_FRACTION), optional(_EXPONENT))


@dataclass(frozen=True, slots=True)
class Bound:
    value: Decimal
    open: bool


@dataclass(frozen=True, slots=True)
class NumberRules:
    """What is known of a number. `divisor` divides it; `whole`: it has no fraction."""

    least: Bound | None = None
    most: Bound | None = None
    divisor: int = 1
    whole: bool = False

    def accepts(self, value: int | float) -> bool:
        number = Decimal(repr(value))
        if (self.whole or self.divisor > 1) and number != number.to_integral_value():
            return False
        if self.divisor > 1 and int(number) % self.divisor:
            return False
        return _above(self.least, number) and _below(self.most, number)

    def values(self) -> range | None:
        """Its values, if it is a whole number between bounds."""
        if self.least is None or self.most is None or not (self.whole or self.divisor > 1):
            return None
        low, high = self._whole_bounds()
        first = -(-low // self.divisor) * self.divisor
        return range(first, high + 1, self.divisor)

    def written(self, rules: Rules) -> Expression:
        """Raises TooComplexError."""
        if self.whole or self.divisor > 1:
            return self._integer(rules)
        if self.least is None and self.most is None:
            return ANY_NUMBER
        least, most = self.least, self.most
        if least is None:
            least = Bound(min(Decimal(0), most.value if most is not None else Decimal(0)) - HUGE, True)
        if most is None:
            most = Bound(max(Decimal(0), least.value) + HUGE, True)
        return _decimals(least, most)

    def _integer(self, rules: Rules) -> Expression:
        if self.least is None and self.most is None and self.divisor == 1:
            return ANY_INTEGER
        low, high = self._whole_bounds()
        if self.divisor == 1:
            return _integers(low, high)
        multiples = _nearest(range(-(-low // self.divisor) * self.divisor, high + 1, self.divisor))
        if len(multiples) <= FEW:
            return alt(*(Text(str(number)) for number in multiples))
        digits = _integers(multiples[0], multiples[-1])
        symbols = alphabet([digits, *map(Text, "0123456789")])
        return rules.automaton(
            Together([Matching(digits, symbols), Multiples(self.divisor, symbols)]), symbols, lambda one: one
        )

    def _whole_bounds(self) -> tuple[int, int]:
        low = high = None
        if self.least is not None:
            low = ceil(self.least.value) + (self.least.open and self.least.value == ceil(self.least.value))
        if self.most is not None:
            high = floor(self.most.value) - (self.most.open and self.most.value == floor(self.most.value))
        if low is None:
            low = -HUGE + 1 if high is None else min(-HUGE + 1, high - HUGE)
        if high is None:
            high = max(HUGE - 1, low + HUGE)
        return low, high


def _nearest(multiples: range) -> range:
    """Those nearest to zero, if they are too many for an automaton."""
    most = min(MANY, max(FEW, MANY // multiples.step))
    if len(multiples) <= most:
        return multiples
    first = min(max(-multiples.start // multiples.step - most // 2, 0), len(multiples) - most)
    return multiples[first : first + most]


def _above(bound: Bound | None, number: Decimal) -> bool:
    return bound is None or number > bound.value or (number == bound.value and not bound.open)


def _below(bound: Bound | None, number: Decimal) -> bool:
    return bound is None or number < bound.value or (number == bound.value and not bound.open)


def _integers(low: int, high: int) -> Expression:
    options: list[Expression] = []
    if low < 0 and low <= high:
        options.append(seq(Text("-"), _naturals(max(1, -high), -low)))
    options.append(_naturals(max(0, low), high))
    return alt(*options)


def _naturals(low: int, high: int) -> Expression:
    """Numbers without leading zeros, by their count of digits."""
    options = []
    for digits in range(len(str(low)), len(str(max(0, high))) + 1):
        first = max(low, 10 ** (digits - 1) if digits > 1 else 0)
        last = min(high, 10**digits - 1)
        if first <= last:
            options.append(_between(str(first), str(last)))
    return alt(*options)


def _digit(low: int, high: int) -> Expression:
    return chars([(0x30 + low, 0x30 + high)]) if low <= high else NOTHING


def _between(low: str, high: str) -> Expression:
    """Texts of digits, as long as both bounds."""
    if low == high:
        return Text(low)
    first, last = int(low[0]), int(high[0])
    rest = len(low) - 1
    if first == last:
        return seq(Text(low[0]), _between(low[1:], high[1:]))
    if low[1:] == "0" * rest and high[1:] == "9" * rest:
        return seq(_digit(first, last), repeat(DIGITS, rest, rest))
    return alt(
        seq(Text(low[0]), _between(low[1:], "9" * rest)) if rest else Text(low[0]),
        seq(_digit(first + 1, last - 1), repeat(DIGITS, rest, rest)),
        seq(Text(high[0]), _between("0" * rest, high[1:])) if rest else Text(high[0]),
    )


def _decimals(least: Bound, most: Bound) -> Expression:
    options: list[Expression] = []
    if least.value < 0:
        nearest = Bound(Decimal(0), True) if most.value >= 0 else Bound(-most.value, most.open)
        options.append(seq(Text("-"), _positive(nearest, Bound(-least.value, least.open))))
    if most.value >= 0:
        options.append(_positive(Bound(Decimal(0), False) if least.value < 0 else least, most))
    return alt(*options)


def _positive(least: Bound, most: Bound) -> Expression:
    """Decimal numbers between bounds that are not below zero."""
    if least.value > most.value or (least.value == most.value and (least.open or most.open)):
        return NOTHING
    low, high = floor(least.value), floor(most.value)
    low_fraction, high_fraction = _fraction_digits(least.value), _fraction_digits(most.value)
    if low == high:
        return seq(Text(str(low)), _fractions(low_fraction, least.open, high_fraction, most.open))
    fraction = optional(seq(Text("."), repeat(DIGITS, 1, FRACTION_DIGITS)))
    return alt(
        seq(Text(str(low)), _fractions(low_fraction, least.open, None, False)) if low < COARSE else NOTHING,
        seq(_naturals(low + 1, min(high - 1, COARSE)), fraction),
        _naturals(max(low + 1, COARSE), high - 1),
        seq(Text(str(high)), _fractions("", False, high_fraction, most.open)) if high < COARSE else NOTHING,
    )


def _fraction_digits(value: Decimal) -> str:
    return f"{value:f}".partition(".")[2].rstrip("0")


def _fractions(low: str, low_open: bool, high: str | None, high_open: bool) -> Expression:
    """What follows a whole number, so that its fraction lies between those with the digits `low` and `high`."""
    whole = EMPTY if not low and not low_open and not (high == "" and high_open) else NOTHING
    return alt(whole, seq(Text("."), _tail(low, low_open, high, high_open, FRACTION_DIGITS, False)))


def _tail(low: str | None, low_open: bool, high: str | None, high_open: bool, left: int, may_end: bool) -> Expression:
    """Digits whose value lies between two others; a bound that the digits before have settled is None."""
    if low is None and high is None:
        return repeat(DIGITS, 0 if may_end else 1, max(left, 1))
    low_done = low is None or (low == "" and not low_open)
    high_done = high is None or not high_open or high != ""
    options: list[Expression] = [EMPTY] if may_end and low_done and high_done else []
    if left <= 0 and not low and not high:
        return alt(*options)
    for digit in range(10):
        first = 0 if low is None else int(low[:1] or "0")
        last = 9 if high is None else int(high[:1] or "0")
        if first <= digit <= last:
            its_low = low[1:] if low is not None and digit == first else None
            its_high = high[1:] if high is not None and digit == last else None
            options.append(seq(Text(str(digit)), _tail(its_low, low_open, its_high, high_open, left - 1, True)))
    return alt(*options)
