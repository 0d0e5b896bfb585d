"""Text that is still arriving, for parsers that are written as if all of it were there.

A parser is a generator. Where it needs more text than there is, it yields, and goes on when more has come; so how the
text was split can make no difference to what it reads.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import TypeVar

Result = TypeVar("Result")
Reading = Generator[None, None, Result]


class Arriving:
    """`taken` is what was read since the last `release`."""

    __slots__ = ("_at", "_text", "has_ended", "taken")

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self.taken = ""
        self.has_ended = False

    def add(self, text: str) -> None:
        self._text = self._text[self._at :] + text
        self._at = 0

    @property
    def rest(self) -> str:
        """What is there and not yet read."""
        return self._text[self._at :]

    def ahead(self, count: int = 1) -> Reading[str]:
        """The next characters, without reading them: fewer than `count` only at the end of the text."""
        while len(self._text) - self._at < count and not self.has_ended:
            yield
        return self._text[self._at : self._at + count]

    def match(self, pattern: re.Pattern[str]) -> str:
        """What of the text that is there now fits at its beginning, without reading it."""
        found = pattern.match(self._text, self._at)
        return found[0] if found else ""

    def take(self, count: int) -> str:
        text = self._text[self._at : self._at + count]
        self._at += count
        self.taken += text
        return text

    def take_all(self, pattern: re.Pattern[str]) -> Reading[str]:
        """Reads on for as long as the characters fit, to the end of the text if they all do."""
        parts = []
        while True:
            parts.append(self.take(len(self.match(pattern))))
            if (yield from self.ahead()) == "" or not self.match(pattern):
                return "".join(parts)

    def release(self) -> str:
        """What was read since the last time, of which nobody needs to know any more."""
        taken, self.taken = self.taken, ""
        return taken
