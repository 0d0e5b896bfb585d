"""Regular expressions as expressions: those parts of the language that stand for a regular set, in the syntax that
ECMA-262 and Python share. What does not, such as look-around, back-references and word boundaries, is refused."""

from __future__ import annotations

from dataclasses import dataclass

from replicas.grammar.classes import ANY, CLASSES, NO_LINE_END, SURROGATES, complement, union
from replicas.grammar.expression import Chars, Expression, alt, chars, repeat, seq, size

MAX_LENGTH = 4096
MAX_DEPTH = 32
MAX_COUNT = 10_000  # of one part's repetitions
MAX_SIZE = 20_000  # with all repetitions written out

_CONTROL = {"n": 0x0A, "r": 0x0D, "t": 0x09, "f": 0x0C, "v": 0x0B, "0": 0x00}
_HEX_DIGITS = {"x": 2, "u": 4}


class PatternError(ValueError):
    """The pattern, and what is wrong with it."""

    def __init__(self, pattern: str, reason: str) -> None:
        shown = pattern if len(pattern) <= 80 else pattern[:77] + "..."
        super().__init__(f"the pattern {shown!r} {reason}")


@dataclass(frozen=True, slots=True)
class Branch:
    """One alternative of a pattern, and whether it is tied to the text's start and end."""

    body: Expression
    at_start: bool
    at_end: bool


def search_expression(pattern: str) -> Expression:
    """The texts in which the pattern is found, as JSON Schema means it. Raises PatternError."""
    anything = repeat(ANY, 0, None)
    return alt(
        *(
            seq(*(() if b.at_start else (anything,)), b.body, *(() if b.at_end else (anything,)))
            for b in _Parser(pattern).branches()
        )
    )


def match_expression(pattern: str) -> Expression:
    """The texts that the pattern matches from end to end. Raises PatternError."""
    return alt(*(branch.body for branch in _Parser(pattern).branches()))


class _Parser:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._depth = 0
        if len(pattern) > MAX_LENGTH:
            raise self._error(f"has {len(pattern)} characters, but may have at most {MAX_LENGTH}")

    def branches(self) -> list[Branch]:
        branches = self._branches()
        if self._at < len(self._pattern):
            raise self._error("has a closing parenthesis too many")
        if sum(size(branch.body) for branch in branches) > MAX_SIZE:
            raise self._error("is too large with its repetitions written out")
        return branches

    def _branches(self) -> list[Branch]:
        branches = [self._branch()]
        while self._take("|"):
            branches.append(self._branch())
        return branches

    def _branch(self) -> Branch:
        """One alternative. `^` may stand first and `$` last."""
        at_start = False
        while self._take("^"):
            at_start = True
        if self._depth == 0 and not at_start and (whole := self._wrapped_branch()) is not None:
            return whole
        parts: list[Expression] = []
        at_end = False
        while not self._ends():
            if self._take("$"):
                at_end = True
            elif self._peek() == "^" or at_end:
                raise self._error("has an anchor in its middle, which is not supported")
            else:
                parts.append(self._repeated())
        return Branch(seq(*parts), at_start, at_end)

    def _wrapped_branch(self) -> Branch | None:
        """An alternative such as `(^a$)`: a group, and nothing else, whose anchors are the alternative's."""
        start, depth = self._at, self._depth
        if not self._pattern.startswith(("(^", "(?:^"), start):
            return None
        self._open_group()
        self._depth = depth
        inner = self._branches()
        if len(inner) == 1 and self._take(")") and self._ends():
            return inner[0]
        self._at, self._depth = start, depth
        return None

    def _repeated(self) -> Expression:
        part = self._atom()
        count = self._quantifier()
        return part if count is None else repeat(part, *count)

    def _quantifier(self) -> tuple[int, int | None] | None:
        """A count behind a part. Lazy and greedy ones stand for the same texts."""
        if self._take("*"):
            count: tuple[int, int | None] = (0, None)
        elif self._take("+"):
            count = (1, None)
        elif self._take("?"):
            count = (0, 1)
        elif self._peek() == "{" and (braces := self._braces()) is not None:
            count = braces
        else:
            return None
        if not self._take("?") and self._peek() in ("*", "+"):
            raise self._error("has a quantifier behind a quantifier")
        least, most = count
        if most is not None and most < least:
            raise self._error(f"repeats at least {least} and at most {most} times")
        if max(least, most or 0) > MAX_COUNT:
            raise self._error(f"repeats {max(least, most or 0)} times, but at most {MAX_COUNT} are supported")
        return count

    def _braces(self) -> tuple[int, int | None] | None:
        """`{2}`, `{2,}` or `{2,3}`; None if the brace stands for itself."""
        end = self._pattern.find("}", self._at)
        low, comma, high = self._pattern[self._at + 1 : max(end, self._at)].partition(",")
        if not low and comma and _is_number(high):
            raise self._error(f"has {{,{high}}}, which means two things; write {{0,{high}}}")
        if not _is_number(low) or (high and not _is_number(high)):
            return None
        self._at = end + 1
        if not comma:
            return int(low), int(low)
        return int(low), int(high) if high else None

    def _atom(self) -> Expression:
        character = self._next()
        match character:
            case "(":
                self._at -= 1
                return self._group()
            case "[":
                return self._class()
            case ".":
                return NO_LINE_END
            case "\\":
                sure, _ = self._escape()
                return sure
            case "*" | "+" | "?":
                raise self._error(f"has {character!r} where nothing can be repeated")
        return self._literal(ord(character))

    def _group(self) -> Expression:
        self._open_group()
        if self._depth > MAX_DEPTH:
            raise self._error(f"has more than {MAX_DEPTH} groups inside each other")
        branches = self._branches()
        if not self._take(")"):
            raise self._error("has a parenthesis that is not closed")
        self._depth -= 1
        if any(branch.at_start or branch.at_end for branch in branches):
            raise self._error("has an anchor inside a group, which is not supported")
        return alt(*(branch.body for branch in branches))

    def _open_group(self) -> None:
        self._next()
        self._depth += 1
        if not self._take("?"):
            return
        if self._take(":"):
            return
        named = self._take("P<") or self._take("<")
        end = self._pattern.find(">", self._at)
        if not named or self._peek() in ("=", "!") or end < 0:
            raise self._error("has a look-around or another group that is not supported")
        self._at = end + 1

    def _class(self) -> Expression:
        """A set in brackets, after the first of them."""
        negated = self._take("^")
        members: list[tuple[Chars, Chars]] = []
        if self._peek() == "]":
            raise self._error("has a class that begins with ], which means two things; write \\]")
        while self._peek() != "]":
            low = self._member()
            if self._peek() == "-" and self._pattern[self._at + 1 : self._at + 2] not in ("]", ""):
                self._next()
                low = self._class_range(low, self._member())
            members.append(low)
        self._next()
        sure, maybe = union(sure for sure, _ in members), union(maybe for _, maybe in members)
        return complement(maybe) if negated else sure

    def _member(self) -> tuple[Chars, Chars]:
        character = self._next()
        if character == "\\":
            return self._escape(in_class=True)
        if character == "[" and self._peek() == ":":
            raise self._error("has a POSIX class, which is not supported")
        literal = self._literal(ord(character))
        return literal, literal

    def _class_range(self, low: tuple[Chars, Chars], high: tuple[Chars, Chars]) -> tuple[Chars, Chars]:
        start, end = low[0].ranges, high[0].ranges
        if len(start) != 1 or len(end) != 1 or start[0][0] != start[0][1] or end[0][0] != end[0][1]:
            raise self._error("has a range between classes")
        if end[0][0] < start[0][0]:
            raise self._error("has a range whose end comes before its start")
        both = chars([(start[0][0], end[0][0])])
        return both, both

    def _escape(self, in_class: bool = False) -> tuple[Chars, Chars]:
        """What stands behind a backslash."""
        character = self._next()
        if character in CLASSES:
            return CLASSES[character]
        if character in _HEX_DIGITS:
            code = self._hex(_HEX_DIGITS[character])
        elif character == "b" and in_class:
            code = 0x08
        elif character in _CONTROL and not (character == "0" and self._peek().isdigit()):
            code = _CONTROL[character]
        elif character == "c" and self._peek().isalpha() and self._peek().isascii():
            code = ord(self._next()) % 32
        elif character.isascii() and character.isalnum():
            raise self._error(f"has \\{character}, which is not supported")
        else:
            code = ord(character)
        literal = self._literal(code)
        return literal, literal

    def _hex(self, digits: int) -> int:
        text = self._pattern[self._at : self._at + digits]
        if len(text) < digits or any(character not in "0123456789abcdefABCDEF" for character in text):
            raise self._error(f"has an escape that lacks its {digits} hexadecimal digits")
        self._at += digits
        code = int(text, 16)
        if 0xD800 <= code <= 0xDBFF and self._take("\\u"):  # the two halves of one character
            return 0x10000 + ((code - 0xD800) << 10) + (self._hex(4) - 0xDC00)
        return code

    def _literal(self, code: int) -> Chars:
        if SURROGATES[0] <= code <= SURROGATES[1]:
            raise self._error("has half of a surrogate pair, which is not a character")
        return Chars(((code, code),))

    def _ends(self) -> bool:
        return self._peek() in ("", "|", ")")

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _next(self) -> str:
        character = self._peek()
        if not character:
            raise self._error("ends too early")
        self._at += 1
        return character

    def _take(self, text: str) -> bool:
        if not self._pattern.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _error(self, reason: str) -> PatternError:
        return PatternError(self._pattern, reason)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10
