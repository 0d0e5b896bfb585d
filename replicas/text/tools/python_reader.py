"""Reads Python literals while they arrive, and passes them on as JSON."""

from __future__ import annotations

import ast
import json
import re

from replicas.text.tools.arriving import Arriving, Reading
from replicas.text.tools.json_reader import SPACE, Emit, Malformed

_CLOSERS = {"{": "}", "[": "]", "(": ")"}
_AS_JSON = {"{": "{", "}": "}", "[": "[", "]": "]", "(": "[", ")": "]"}
_PLAIN = re.compile(r"""[^"'\\]*""")
_ESCAPE_LENGTHS = {"x": 4, "u": 6, "U": 10} | dict.fromkeys("01234567", 4)
_ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{1,3}|[^xuUN])", re.DOTALL)
_WORD = re.compile(r"[-+.\w]*")
_LONGEST_SCALAR = 400
_CONSTANTS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}


class PythonReader:
    """Strings are passed on as they come, all else in whole tokens. Tuples become lists."""

    __slots__ = ("_emit", "_source")

    def __init__(self, source: Arriving, emit: Emit) -> None:
        self._source = source
        self._emit = emit

    def value(self) -> Reading[None]:
        """One value of any kind. Without recursion: text decides how deep it is nested."""
        source, closers = self._source, ""
        while True:
            opening = yield from self._next()
            if opening and opening in _CLOSERS:
                self._pass_bracket()
                closers += _CLOSERS[opening]
                if (yield from self._next()) != closers[-1]:
                    yield from self._key(closers)
                    continue
            elif opening and opening in "\"'":
                yield from self.string()
            else:
                yield from self._scalar()
            while closers:
                if (yield from self._next()) == ",":
                    source.take(1)
                    if (yield from self._next()) != closers[-1]:
                        self._emit(", ")
                        break
                elif (yield from self._next()) != closers[-1]:
                    raise Malformed
                self._pass_bracket()
                closers = closers[:-1]
            if not closers:
                return
            yield from self._key(closers)

    def string(self) -> Reading[None]:
        source = self._source
        quote = source.take(1)
        if (yield from source.ahead(2)) == quote * 2:
            source.take(2)
            quote *= 3
        self._emit('"')
        while (text := (yield from source.ahead(len(quote)))) != quote:
            if text.startswith("\\"):
                self._emit(_json_text((yield from self._escape())))
            elif text == "":
                raise Malformed
            else:
                plain = source.match(_PLAIN) or text[0]
                source.take(len(plain))
                self._emit(_json_text(plain))
        source.take(len(quote))
        self._emit('"')

    def _escape(self) -> Reading[str]:
        kind = (yield from self._source.ahead(2))[1:]
        text = yield from self._source.ahead(_ESCAPE_LENGTHS.get(kind, 2))
        found = _ESCAPE.match(text)
        if found is None:
            raise Malformed
        escape = self._source.take(len(found[0]))
        if kind in "\"'\\\nabfnrtv01234567xuU":
            try:
                return str(ast.literal_eval(f'"{escape}"'))
            except SyntaxError:  # a character beyond Unicode
                raise Malformed from None
        return escape

    def _key(self, closers: str) -> Reading[None]:
        """In a dict; elsewhere there is none."""
        if closers[-1] != "}":
            return
        opening = yield from self._next()
        if not opening or opening not in "\"'":
            raise Malformed
        yield from self.string()
        if (yield from self._next()) != ":":
            raise Malformed
        self._source.take(1)
        self._emit(": ")

    def _scalar(self) -> Reading[None]:
        count = 1
        while len(word := (yield from self._source.ahead(count))) == count and _WORD.fullmatch(word):
            count += 1
            if count > _LONGEST_SCALAR:
                raise Malformed
        self._emit_scalar(word[: count - 1])

    def _emit_scalar(self, word: str) -> None:
        text = _CONSTANTS.get(word) or _number(word)
        self._source.take(len(word))
        self._emit(text)

    def _next(self) -> Reading[str]:
        """The next character but for white space."""
        yield from self._source.take_all(SPACE)
        return (yield from self._source.ahead())

    def _pass_bracket(self) -> None:
        self._emit(_AS_JSON[self._source.take(1)])


def _number(word: str) -> str:
    try:
        value = ast.literal_eval(word)
    except (ValueError, SyntaxError):
        raise Malformed from None
    if type(value) not in (int, float):
        raise Malformed
    text = json.dumps(value)
    if text.strip("-") in ("Infinity", "NaN"):
        raise Malformed
    return text


def _json_text(text: str) -> str:
    """The inside of a JSON string. Halves of surrogate pairs, which UTF-8 cannot hold, stay escapes."""
    return json.dumps(text, ensure_ascii=any("\ud800" <= character <= "\udfff" for character in text))[1:-1]
