"""What the text of an answer consists of, once the marks around reasoning and tool calls are understood."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What the model thought before it answered."""

    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """What the model says to the caller."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """The call number `index` of the answer begins; its arguments follow."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the arguments of call `index`. Joined, they are a JSON object, unless the answer was cut."""

    index: int
    text: str


Part = Reasoning | Content | CallStart | CallArguments


class MessageParser(Protocol):
    """Reads one answer as it grows. The parts, with the texts of like neighbours joined, do not depend on how the text
    is split over calls of `push`. Nothing is lost: what is no call after all is content."""

    def push(self, text: str) -> list[Part]:
        """The parts that are certain now."""
        ...

    def finish(self) -> list[Part]:
        """What was held back, when no more follows."""
        ...

    @property
    def has_whole_calls(self) -> bool:
        """Whether there are calls, none of which was cut."""
        ...


class ContentParser:
    """For answers in which nothing has a meaning of its own."""

    has_whole_calls = False

    def push(self, text: str) -> list[Part]:
        return [Content(text)] if text else []

    def finish(self) -> list[Part]:
        return []


def joined(parts: Iterable[Part]) -> list[Part]:
    """The same parts with the texts of like neighbours joined; empty texts vanish."""
    result: list[Part] = []
    for part in parts:
        if isinstance(part, CallStart):
            result.append(part)
            continue
        last = result[-1] if result else None
        if _are_alike(last, part):
            assert not isinstance(last, CallStart | None)
            result[-1] = replace(last, text=last.text + part.text)
        elif part.text:
            result.append(part)
    return result


def _are_alike(last: Part | None, part: Part) -> bool:
    if type(last) is not type(part):
        return False
    return not isinstance(part, CallArguments) or (isinstance(last, CallArguments) and last.index == part.index)
