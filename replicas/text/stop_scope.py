"""Where in an answer a stop string counts."""

from __future__ import annotations


class StopScope:
    """Splits a growing text into its reasoning, in which no stop string counts, and what follows it.

    Reasoning ends behind the first `closing`. It begins with `opening`, which must be the first in the text but for
    white space, or, with `is_open`, the text begins inside it, as after a template that has written `opening` itself.
    The parts do not depend on how the text is split over calls of `push`.
    """

    __slots__ = ("_closing", "_held", "_is_inside", "_opening")

    def __init__(self, opening: str, closing: str, is_open: bool) -> None:
        self._opening = opening
        self._closing = closing
        self._is_inside: bool | None = True if is_open else None
        self._held = ""

    def push(self, text: str) -> tuple[str, str]:
        """Reasoning and answer text that are certain now."""
        if self._is_inside is False:
            return "", text
        text, self._held = self._held + text, ""
        if self._is_inside is None:
            begun = text.lstrip()
            if len(begun) < len(self._opening) and self._opening.startswith(begun):
                self._held = text
                return "", ""
            self._is_inside = begun.startswith(self._opening)
            if not self._is_inside:
                return "", text
        return self._push_inside(text)

    def finish(self) -> tuple[str, str]:
        """What was held back when no more follows."""
        held, self._held = self._held, ""
        return (held, "") if self._is_inside else ("", held)

    def _push_inside(self, text: str) -> tuple[str, str]:
        end = text.find(self._closing)
        if end >= 0:
            self._is_inside = False
            end += len(self._closing)
            return text[:end], text[end:]
        held = max(n for n in range(len(self._closing)) if text.endswith(self._closing[:n]))
        self._held = text[len(text) - held :]
        return text[: len(text) - held], ""
