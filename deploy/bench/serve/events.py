"""Server-sent events of a streamed completion, chat or not, as they arrive in pieces.

What is an event with tokens: one whose choice carries text (content, reasoning, a tool call), or an empty text that
neither opens the message with a role nor closes it (a token that has no text yet). If a stream has tokens by its
usage and none ever showed, the closing event stands for them: nobody saw anything earlier.
"""

from __future__ import annotations

from array import array
from typing import Any

import msgspec


class _Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """What a response says it cost."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None

    @property
    def cached_tokens(self) -> int:
        return (self.prompt_tokens_details and self.prompt_tokens_details.cached_tokens) or 0


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


class EventReader:
    """Reads one stream. `times` are those of the events with tokens."""

    def __init__(self) -> None:
        self.times = array("d")
        self.usage: Usage | None = None
        self.finished_at: float | None = None
        self.failure: str | None = None
        self._rest = b""

    def feed(self, data: bytes, now: float) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._take(line[5:].strip(), now)

    def _take(self, data: bytes, now: float) -> None:
        if data == b"[DONE]":
            return
        try:
            chunk = _decode(data)
        except msgspec.DecodeError:
            self.failure = "an event that is not a completion's"
            return
        if chunk.error is not None:
            self.failure = "an error event"
        if chunk.usage is not None:
            self.usage = chunk.usage
        if not chunk.choices:
            return
        choice = chunk.choices[0]
        if _carries_tokens(choice):
            self.times.append(now)
        if choice.finish_reason is not None:
            self.finished_at = now


def _carries_tokens(choice: _Choice) -> bool:
    delta = choice.delta
    if delta is None:
        return bool(choice.text) or (choice.text is not None and choice.finish_reason is None)
    if delta.content or delta.reasoning or delta.reasoning_content or delta.tool_calls:
        return True
    return delta.content is not None and delta.role is None and choice.finish_reason is None
