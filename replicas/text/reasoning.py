"""What a model thinks before it answers, as far as its text shows it: <think>...</think> and the like."""

from __future__ import annotations

from dataclasses import dataclass

from replicas.text.parts import MessageParser, Part, Reasoning


@dataclass(frozen=True, slots=True)
class ThinkMarks:
    """The texts that reasoning stands between. `always`: the model thinks even if nothing opened its reasoning."""

    opening: str
    closing: str
    always: bool = False

    def is_open_in(self, text: str) -> bool:
        """Whether a text leaves off inside reasoning."""
        return text.rfind(self.opening) > text.rfind(self.closing)


THINK = ThinkMarks("<think>", "</think>")

REASONING_FORMATS = {
    "think": THINK,
    "think_always": ThinkMarks(THINK.opening, THINK.closing, always=True),
    "mistral": ThinkMarks("[THINK]", "[/THINK]"),
    "seed": ThinkMarks("<seed:think>", "</seed:think>"),
}


def find_think_marks(template: str) -> ThinkMarks | None:
    """The marks that a chat template writes or looks for."""
    return next((marks for marks in REASONING_FORMATS.values() if marks.closing in template), None)


class ReasoningParser:
    """Gives out what stands before the first closing mark as reasoning and hands the rest to `answer`. Without
    `is_open` there is reasoning only if the text begins with the opening mark. Line breaks beside the marks belong to
    the marks."""

    def __init__(self, marks: ThinkMarks, is_open: bool, answer: MessageParser) -> None:
        self._marks = marks
        self._answer = answer
        self._state = "inside" if is_open else "before"
        self._held = ""
        self._strips = True  # line breaks at the beginning of a part

    @property
    def has_whole_calls(self) -> bool:
        return self._answer.has_whole_calls

    def push(self, text: str) -> list[Part]:
        parts: list[Part] = []
        text, self._held = self._held + text, ""
        if self._state == "before":
            text = self._push_before(text)
        if self._state == "inside":
            text = self._push_inside(text, parts)
        if self._state == "after":
            parts += self._push_after(text)
        return parts

    def finish(self) -> list[Part]:
        held, self._held = self._held, ""
        if self._state == "inside":
            text = held.rstrip("\n")
            return [*([Reasoning(text)] if text else []), *self._answer.finish()]
        return [*self._answer.push(held), *self._answer.finish()]

    def _push_before(self, text: str) -> str:
        """What is left to look at, if it is known what the text begins with."""
        opening, begun = self._marks.opening, text.lstrip()
        if begun.startswith(opening):
            self._state = "inside"
            return begun[len(opening) :]
        if opening.startswith(begun):
            self._held = text
            return ""
        self._state, self._strips = "after", False
        return text

    def _push_inside(self, text: str, parts: list[Part]) -> str:
        """What follows the closing mark."""
        if self._strips:
            text = text.lstrip("\n")
        closing = self._marks.closing
        thought, mark, rest = text.partition(closing)
        if mark:
            thought = thought.rstrip("\n")
            self._state, self._strips = "after", True
        else:
            begun = next(n for n in range(len(closing) - 1, -1, -1) if thought.endswith(closing[:n]))
            certain = thought[: len(thought) - begun].rstrip("\n")
            thought, self._held = certain, thought[len(certain) :]
            self._strips = self._strips and not thought
        if thought:
            parts.append(Reasoning(thought))
        return rest

    def _push_after(self, text: str) -> list[Part]:
        if self._strips:
            text = text.lstrip("\n")
            self._strips = not text
        return self._answer.push(text) if text else []
