"""What all parsers of tool calls have in common: content around calls, numbers and ids of calls, and the way back from
what only looked like a call."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator

from replicas.text.parts import CallArguments, CallStart, Content, Part, joined
from replicas.text.tools.arriving import Arriving, Reading
from replicas.text.tools.json_reader import SPACE, Malformed

NewId = Callable[[], str]


def new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


class CallParser(ABC):
    """A call is given out as soon as its name is known and its arguments begin well. Until then its text is kept: if it
    goes on otherwise, it was content. White space beside a call belongs to the call.

    `names` are the tools of the request. Where nothing but a call's own form marks it, only those can be called. Calls
    beyond `limit` are dropped.
    """

    openings: tuple[str, ...]
    """Texts with which calls begin."""

    def __init__(self, names: Collection[str], new_id: NewId = new_call_id, limit: int | None = None) -> None:
        self._names = names
        self._new_id = new_id
        self._source = Arriving()
        self._parts: list[Part] = []
        self._space = ""  # at the end of the content: it is only sent if more content follows
        self._follows_call = False
        self._limit = limit
        self._whole: list[bool] = []  # of each call whether its arguments are complete
        self._reading: Iterator[None] = self._read()
        next(self._reading)

    @abstractmethod
    def _call(self, opening: str) -> Reading[None]:
        """Reads `opening` and at least a call behind it. Raises Malformed, but not before `opening` is read."""

    @property
    def has_whole_calls(self) -> bool:
        return bool(self._whole) and all(self._whole[: self._limit])

    def push(self, text: str) -> list[Part]:
        self._source.add(text)
        next(self._reading)
        return self._drain()

    def finish(self) -> list[Part]:
        self._source.has_ended = True
        for _ in self._reading:
            pass
        self._parts.append(Content(self._space))
        return self._drain()

    def _drain(self) -> list[Part]:
        parts, self._parts = joined(self._parts), []
        return parts

    def _read(self) -> Reading[None]:
        source = self._source
        while (opening := (yield from self._next_opening())) is not None:
            try:
                yield from self._call(opening)
                source.release()
            except Malformed:
                self._content(source.release())

    def _next_opening(self) -> Reading[str | None]:
        """Passes on what comes before it; None at the end of the text."""
        while True:
            text = self._source.rest
            found = [(start, opening) for opening in self.openings if (start := text.find(opening)) >= 0]
            start = min(found)[0] if found else self._certain(text)
            self._source.take(start)
            self._content(self._source.release())
            if found:
                return min(found)[1]
            if self._source.has_ended:
                return None
            yield

    def _certain(self, text: str) -> int:
        """How much of a text without an opening can be passed on: not what an opening may begin with."""
        if self._source.has_ended:
            return len(text)
        longest = max(map(len, self.openings)) - 1
        for start in range(max(0, len(text) - longest), len(text)):
            if any(opening.startswith(text[start:]) for opening in self.openings):
                return start
        return len(text)

    def _content(self, text: str) -> None:
        if self._follows_call:
            text = text.lstrip()
        if not text:
            return
        self._follows_call = False
        text = self._space + text
        sent = text.rstrip()
        self._space = text[len(sent) :]
        self._parts.append(Content(sent))

    def _begin(self, name: str) -> int:
        index = len(self._whole)
        self._whole.append(False)
        self._space, self._follows_call = "", True
        self._source.release()
        if self._limit is None or index < self._limit:
            self._parts.append(CallStart(index, self._new_id(), name))
        return index

    def _argue(self, index: int, text: str) -> None:
        self._source.release()
        if self._limit is None or index < self._limit:
            self._parts.append(CallArguments(index, text))

    def _whole_call(self, name: str, arguments: str) -> None:
        self._argue(self._begin(name), arguments)
        self._whole[-1] = True

    def _skip_space(self) -> Reading[str]:
        """The character behind it, which is not read."""
        yield from self._source.take_all(SPACE)
        return (yield from self._source.ahead())

    def _expect(self, text: str) -> Reading[None]:
        if (yield from self._source.ahead(len(text))) != text:
            raise Malformed
        self._source.take(len(text))

    def _skip_to(self, closing: str) -> Reading[None]:
        """`closing` behind white space. At the end of the text it may be missing: models leave it out."""
        if (yield from self._skip_space()) != "":
            yield from self._expect(closing)
