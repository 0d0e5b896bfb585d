"""Keeps what people write from becoming control tokens on its way through a chat template."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from replicas.text.control_tokens import ControlTokens

_MARK = "\ufdd0"  # a noncharacter: Unicode keeps it for internal use, no text needs it


class Guard:
    """Puts a mark behind each character with which a control token could begin, so that no control token can be found
    in a rendered text unless the template itself wrote its beginning. It holds even if a template cuts or joins
    strings. Marks are taken out again before text is encoded (with any that a person wrote).
    """

    def __init__(self, control: ControlTokens) -> None:
        beginnings = _beginnings(token.content for token in control.tokens.values())
        self._anywhere = re.compile(beginnings)
        readable = "|".join(re.escape(token.content) for token in control.tokens.values() if not token.special)
        self._but_readable = re.compile(f"(?!{readable})(?:{beginnings})") if readable else self._anywhere

    def mark(self, value: Any) -> Any:
        """All strings in `value`, keys too."""
        if isinstance(value, str):
            return self._anywhere.sub(rf"\g<0>{_MARK}", value)
        if isinstance(value, dict):
            return {self.mark(key): self.mark(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.mark(item) for item in value]
        return value

    def mark_answer(self, text: str) -> str:
        """What the model said earlier. Tags that are tokens but not special, such as </think>, stay: the model wrote
        them as tokens, and templates look for them to drop old reasoning."""
        return self._but_readable.sub(rf"\g<0>{_MARK}", text)

    @staticmethod
    def unmark(text: str) -> str:
        return text.replace(_MARK, "")


def _beginnings(spellings: Iterable[str]) -> str:
    """A pattern for each first character, which is nearly always `<` or `[`. A spelling that begins like a word is
    only looked for as a whole, since marks inside ordinary words would hide them from templates."""
    firsts, wholes = set(), set()
    for spelling in spellings:
        first, rest = spelling[0], spelling[1:]
        if first.isalnum() or first.isspace():
            wholes.add(f"{re.escape(first)}(?={re.escape(rest)})")
        else:
            firsts.add(re.escape(first))
    return "|".join(sorted(firsts | wholes)) or "(?!)"
