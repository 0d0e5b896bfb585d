"""Where the control tokens of a text are. They are found here and not by the tokenizer library, so that each caller
decides which text may hold them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from tokenizers import AddedToken

Segment = int | str


class ControlTokens:
    """The tokens that steer a model: every special token, and every added token that the chat template writes.

    `split` cuts a text into ids of control tokens and the plain text between them, as the tokenizer library would:
    leftmost first, then longest, with the white space that a token's lstrip and rstrip flags give it.
    """

    def __init__(self, added_tokens: Mapping[int, AddedToken], chat_template: str | None) -> None:
        template = chat_template or ""
        self.tokens = {
            index: token
            for index, token in added_tokens.items()
            if token.special or (token.content.strip() and token.content in template)
        }
        self._ids = {token.content: index for index, token in self.tokens.items()}
        self._pattern = _pattern(self.tokens.values())

    def split(self, text: str) -> list[Segment]:
        segments: list[Segment] = []
        start = 0
        for match in self._pattern.finditer(text):
            if match.start() > start:
                segments.append(text[start : match.start()])
            segments.append(self._ids[match[match.lastindex or 0]])
            start = match.end()
        if start < len(text):
            segments.append(text[start:])
        return segments


def _pattern(tokens: Iterable[AddedToken]) -> re.Pattern[str]:
    """One group for each way to treat the surroundings; nearly always there is a single one."""
    groups: dict[tuple[str, str], list[str]] = {}
    for token in tokens:
        word = (r"(?<!\w)", r"(?!\w)") if token.single_word else ("", "")
        around = (r"\s*" * token.lstrip + word[0], word[1] + r"\s*" * token.rstrip)
        groups.setdefault(around, []).append(token.content)
    branches = (f"{before}({_any_of(spellings)}){after}" for (before, after), spellings in groups.items())
    return re.compile("|".join(branches) or "(?!)")


def _any_of(spellings: Iterable[str]) -> str:
    """A pattern for the longest of the spellings, as a tree of characters: some models have a thousand of them."""
    rests: dict[str, list[str]] = {}
    for spelling in spellings:
        rests.setdefault(spelling[:1], []).append(spelling[1:])
    may_end = rests.pop("", None) is not None
    branches = "|".join(re.escape(first) + _any_of(rest) for first, rest in rests.items())
    if may_end:
        return f"(?:{branches})?" if branches else ""
    return f"(?:{branches})" if len(rests) > 1 else branches
