"""What all parsers of tool calls have in common: content around calls, numbers and ids of calls, and the way back from
what only looked like a call."""

from __future__ import annotations

import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator

from replicas.text.parts import CallArguments, CallStart, Content, Part, joined
from replicas.text.tools.arriving import Arriving, Reading
from replicas.text.tools.json_reader import SPACE, JsonReader, Malformed, read_string, skip_value

NewId = Callable[[], str]

_ARGUMENTS = ("arguments", "parameters")


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

    # Calls that are JSON: an object with name and arguments.

    def _json_calls(self, known_only: bool) -> Reading[None]:
        """One object, or a list of them."""
        if (yield from self._skip_space()) != "[":
            yield from self._json_call(known_only)
            return
        self._source.take(1)
        while True:
            yield from self._json_call(known_only)
            if (separator := (yield from self._skip_space())) == "":
                return
            yield from self._expect("," if separator == "," else "]")
            if separator != ",":
                return

    def _json_call(self, known_only: bool) -> Reading[None]:
        source, name, early, begun = self._source, None, None, False
        punctuation = JsonReader(source, lambda _: None).punctuation
        yield from punctuation("{")
        while True:
            key = yield from read_string(source)
            yield from punctuation(":")
            if key == "name" and name is None:
                name = yield from read_string(source)
                if not name or (known_only and name not in self._names):
                    raise Malformed
            elif key in _ARGUMENTS and not begun and early is None:
                begun = name is not None
                early = yield from self._json_arguments(name)
            elif known_only and name is None and key != "type":
                raise Malformed
            else:
                yield from skip_value(source)
            if (yield from punctuation(",}")) == "}":
                break
        if name is None:
            raise Malformed
        if not begun:
            self._whole_call(name, early or "{}")
        source.release()

    def _json_arguments(self, name: str | None) -> Reading[str | None]:
        """Gives them out as they come if the name is known, which it nearly always is; else returns them. Some models
        write the object into a string, or null for none."""
        opening = yield from self._skip_space()
        if opening == "{" and name is not None:
            yield from self._stream_arguments(name)
            return None
        parts: list[str] = []
        if opening == '"':
            parts.append((yield from read_string(self._source)))
        else:
            yield from JsonReader(self._source, parts.append).value()
        text = _object_text("".join(parts))
        if name is None:
            return text
        self._whole_call(name, text)
        return None

    def _stream_arguments(self, name: str) -> Reading[None]:
        held: list[str] = []
        index: int | None = None

        def emit(text: str) -> None:
            nonlocal index
            if index is not None:
                self._argue(index, text)
                return
            held.append(text)
            if text == ":":  # behind the first key: this looks like arguments
                index = self._begin(name)
                self._argue(index, "".join(held))

        yield from JsonReader(self._source, emit).value()
        if index is None:
            index = self._begin(name)
            self._argue(index, "".join(held))
        self._whole[-1] = True

    def _whole_call(self, name: str, arguments: str) -> None:
        self._argue(self._begin(name), arguments)
        self._whole[-1] = True


def _object_text(text: str) -> str:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise Malformed from None
    if value is None:
        return "{}"
    if not isinstance(value, dict):
        raise Malformed
    return text
