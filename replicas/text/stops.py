"""Stop strings in a growing text."""

from __future__ import annotations

from collections.abc import Sequence


class StopChecker:
    """Lets text through until the first stop string is complete. Of several, the one that is complete first wins;
    of those complete at the same character, the longest. The result does not depend on how the text is split over
    `push` calls: at any time, only the longest ending that could still become a stop string is held back.

    `include` keeps the stop string at the end of the text. After a match (`stopped`, `matched`) all further text is
    dropped.
    """

    __slots__ = ("_beginnings", "_held", "_include", "_stops", "matched", "stopped")

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        if "" in stops:
            raise ValueError("a stop string may not be empty")
        self._stops = tuple(stops)
        self._beginnings = _beginnings_by_last_character(stops)
        self._include = include
        self._held = ""
        self.stopped = False
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """The text that may be sent now."""
        if self.stopped or not text:
            return ""
        if self._held:
            text = self._held + text
        for stop in self._stops:
            if stop in text:
                return self._stop(text)
        for beginning in self._beginnings.get(text[-1], ()):
            if text.endswith(beginning):
                self._held = beginning
                return text[: -len(beginning)]
        self._held = ""
        return text

    def finish(self) -> str:
        """The text that was held back when no more follows."""
        held, self._held = self._held, ""
        return held

    def _stop(self, text: str) -> str:
        ends = ((text.find(stop) + len(stop), -len(stop), stop) for stop in self._stops if stop in text)
        end, _, self.matched = min(ends)
        self.stopped = True
        self._held = ""
        return text[: end if self._include else end - len(self.matched)]


def _beginnings_by_last_character(stops: Sequence[str]) -> dict[str, list[str]]:
    """All proper beginnings of the stop strings, longest first, keyed by the character they end with."""
    beginnings = sorted({stop[:length] for stop in stops for length in range(1, len(stop))}, key=len, reverse=True)
    table: dict[str, list[str]] = {}
    for beginning in beginnings:
        table.setdefault(beginning[-1], []).append(beginning)
    return table
