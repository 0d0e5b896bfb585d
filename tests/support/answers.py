"""Answers of models as texts, how they may be split, and what a parser makes of the pieces."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from replicas.text.parts import CallArguments, CallStart, Content, MessageParser, Part, Reasoning, joined

PLAIN = st.text(st.characters(codec="utf-8"), max_size=12)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | PLAIN
    | st.sampled_from(['}"]', "</tool_call>", "[ARGS]", "\\", "a\nb", "'", '"', "{", "[f(", "🫠", ")]"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(PLAIN, inner, max_size=3),
    max_leaves=8,
)
NAMES = ("get_weather", "math.factorial", "f")
CALLS = st.lists(st.tuples(st.sampled_from(NAMES), st.dictionaries(PLAIN, VALUES, max_size=3)), min_size=1, max_size=3)


def pieces(text: str, cuts: Iterable[int]) -> list[str]:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return [text[start:end] for start, end in pairwise(places)]


def parse(parser: MessageParser, texts: Sequence[str]) -> list[Part]:
    parts = [part for text in texts for part in parser.push(text)]
    return joined([*parts, *parser.finish()])


def content_of(parts: Iterable[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Content))


def reasoning_of(parts: Iterable[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Reasoning))


def calls_of(parts: Iterable[Part]) -> list[tuple[str, Any]]:
    """Names with arguments as values; arguments that are no JSON as text."""
    names: list[str] = []
    arguments: list[str] = []
    for part in parts:
        if isinstance(part, CallStart):
            assert part.index == len(names)
            names.append(part.name)
            arguments.append("")
        elif isinstance(part, CallArguments):
            arguments[part.index] += part.text
    return [(name, _value(text)) for name, text in zip(names, arguments, strict=True)]


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
