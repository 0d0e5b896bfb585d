"""Stop strings in a growing text."""

from __future__ import annotations

from array import array
from collections.abc import Sequence


class StopStrings:
    """The stop strings of one request, prepared once for all its choices. Immutable; as large as the strings.

    `failures[i][n]` is the failure function of string i: the longest proper beginning of it that its first n + 1
    characters end with (Knuth, Morris and Pratt 1977). `include` keeps the stop string at the end of a text.
    """

    __slots__ = ("failures", "include", "stops")

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        if "" in stops:
            raise ValueError("a stop string may not be empty")
        self.stops = tuple(dict.fromkeys(stops))
        self.failures = tuple(map(_failure_function, self.stops))
        self.include = include


class StopChecker:
    """Lets text through until the first stop string is complete. Of several, the one that is complete first wins;
    of those complete at the same character, the longest. The result does not depend on how the text is split over
    `push` calls: at any time, only the longest ending that could still become a stop string is held back.

    After a match (`stopped`, `matched`) all further text is dropped.
    """

    __slots__ = ("_begun", "_held", "_strings", "matched", "stopped")

    def __init__(self, strings: StopStrings) -> None:
        self._strings = strings
        self._begun = [0] * len(strings.stops)  # how many characters of each stop string the text ends with
        self._held = ""
        self.stopped = False
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """The text that may be sent now."""
        if self.stopped or not text:
            return ""
        strings, begun, complete = self._strings, self._begun, []
        for index, stop in enumerate(strings.stops):
            if not begun[index] and stop[0] not in text:
                continue
            begun[index], end = _advance(stop, strings.failures[index], begun[index], text)
            if begun[index] == len(stop):
                complete.append((end, -len(stop), stop))
        text = self._held + text
        if complete:
            return self._stop(text, *min(complete))
        sent = len(text) - max(begun, default=0)
        self._held = text[sent:]
        return text[:sent]

    def finish(self) -> str:
        """The text that was held back when no more follows."""
        held, self._held = self._held, ""
        return held

    def _stop(self, text: str, end: int, _: int, stop: str) -> str:
        end += len(self._held)
        self.stopped, self.matched, self._held = True, stop, ""
        return text[: end if self._strings.include else end - len(stop)]


def _failure_function(stop: str) -> array[int]:
    failures, length = array("I", [0]) * len(stop), 0
    for index in range(1, len(stop)):
        while length and stop[index] != stop[length]:
            length = failures[length - 1]
        length += stop[index] == stop[length]
        failures[index] = length
    return failures


def _advance(stop: str, failures: array[int], begun: int, text: str) -> tuple[int, int]:
    """How many characters of `stop` the text ends with, after as much of it as was read: to its end, or to where
    `stop` is complete."""
    for end, character in enumerate(text, start=1):
        while begun and stop[begun] != character:
            begun = failures[begun - 1]
        if stop[begun] == character:
            begun += 1
            if begun == len(stop):
                return begun, end
    return begun, len(text)
