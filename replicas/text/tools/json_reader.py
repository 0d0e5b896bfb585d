"""Reads JSON while it arrives, and says at the first wrong character that it is none."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from replicas.text.tools.arriving import Arriving, Reading

Emit = Callable[[str], None]

SPACE = re.compile(r"[ \t\r\n]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_WORD = re.compile(r"[-+.0-9A-Za-z]*")
_LONGEST_SCALAR = 400
_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null")


class Malformed(Exception):  # it is no error: models write what they like
    """The text goes on otherwise than what is read."""


class JsonReader:
    """Passes what it has read to `emit`: strings as they come, all else in whole tokens. Control characters in strings,
    which JSON forbids but models write, are passed on as escapes."""

    __slots__ = ("_emit", "_source")

    def __init__(self, source: Arriving, emit: Emit) -> None:
        self._source = source
        self._emit = emit

    def value(self) -> Reading[None]:
        """One value of any kind. Without recursion: text decides how deep it is nested."""
        source, closers = self._source, ""
        while True:
            yield from self._space()
            opening = yield from source.ahead()
            if opening and opening in "{[":
                self._pass(1)
                closer = "}" if opening == "{" else "]"
                yield from self._space()
                if (yield from source.ahead()) != closer:
                    closers += closer
                    if opening == "{":
                        yield from self._key()
                    continue
                self._pass(1)
            elif opening == '"':
                yield from self.string()
            else:
                yield from self._scalar()
            while closers and (yield from self.punctuation("," + closers[-1])) != ",":
                closers = closers[:-1]
            if not closers:
                return
            if closers[-1] == "}":
                yield from self._key()

    def string(self) -> Reading[None]:
        source = self._source
        if (yield from source.ahead()) != '"':
            raise Malformed
        self._pass(1)
        while True:
            self._pass(len(source.match(_PLAIN)))
            character = yield from source.ahead()
            if character == "\\":
                escape = yield from source.ahead(2)
                if escape == "\\u":
                    escape = yield from source.ahead(6)
                if not _ESCAPE.fullmatch(escape):
                    raise Malformed
                self._pass(len(escape))
            elif character == '"':
                self._pass(1)
                return
            elif character == "":
                raise Malformed
            elif character < " ":
                source.take(1)
                self._emit(json.dumps(character)[1:-1])

    def punctuation(self, allowed: str) -> Reading[str]:
        """The next character but for white space, which must be one of `allowed`."""
        yield from self._space()
        character = yield from self._source.ahead()
        if not character or character not in allowed:
            raise Malformed
        return self._pass(1)

    def _key(self) -> Reading[None]:
        yield from self._space()
        yield from self.string()
        yield from self.punctuation(":")

    def _scalar(self) -> Reading[None]:
        """Passed on only when it is whole, since its beginning alone may be wrong."""
        count = 1
        while len(word := (yield from self._source.ahead(count))) == count and _WORD.fullmatch(word):
            count += 1
            if count > _LONGEST_SCALAR:
                raise Malformed
        if not _SCALAR.fullmatch(word[: count - 1]):
            raise Malformed
        self._pass(count - 1)

    def _space(self) -> Reading[None]:
        self._emit((yield from self._source.take_all(SPACE)))

    def _pass(self, count: int) -> str:
        text = self._source.take(count)
        if text:
            self._emit(text)
        return text


def read_string(source: Arriving) -> Reading[str]:
    """A JSON string's value, behind white space."""
    yield from source.take_all(SPACE)
    parts: list[str] = []
    yield from JsonReader(source, parts.append).string()
    return str(json.loads("".join(parts)))


def skip_value(source: Arriving) -> Reading[None]:
    yield from JsonReader(source, lambda _: None).value()
