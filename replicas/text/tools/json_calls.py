"""Calls that are JSON: an object with a name and arguments."""

from __future__ import annotations

import json
import re

from replicas.text.tools.arriving import Reading
from replicas.text.tools.calls import CallParser
from replicas.text.tools.json_reader import JsonReader, Malformed, read_string, skip_value

_ARGUMENTS = ("arguments", "parameters")
_FIRST_KEY = re.compile(r'\{\s*"(?:[^"\\]|\\.)*"\s*:', re.DOTALL)


class JsonCallParser(CallParser):
    """With `known_only` other objects than calls of the request's tools are left alone at the first sign."""

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
            if text == ":" and _FIRST_KEY.fullmatch("".join(held)):  # this looks like arguments
                index = self._begin(name)
                self._argue(index, "".join(held))

        yield from JsonReader(self._source, emit).value()
        if index is None:
            self._argue(self._begin(name), "".join(held))
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
