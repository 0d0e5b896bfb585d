"""Calls in Python's own words, as Llama 3.2 and 4 and ToolACE write them: [f(a=1), g(b="x")]. Calls in JSON are read
as well: grammars know JSON schemas in no other form."""

from __future__ import annotations

import json
import re

from replicas.text.tools.arriving import Reading
from replicas.text.tools.json_calls import JsonCallParser
from replicas.text.tools.json_reader import Malformed
from replicas.text.tools.python_reader import PythonReader

PYTHON_START, PYTHON_END = "<|python_start|>", "<|python_end|>"

_NAME = re.compile(r"[\w.:/-]*")
_KEYWORD = re.compile(r"[\w-]*")


class PythonicParser(JsonCallParser):
    """Only calls of the request's tools: an answer may hold other lists. Arguments must have names."""

    openings = (PYTHON_START, "[", "{")

    def _call(self, opening: str) -> Reading[None]:
        source = self._source
        if opening == "{":
            yield from self._json_calls(known_only=True)
            return
        if opening == PYTHON_START:
            source.take(len(opening))
            yield from self._skip_space()
        yield from self._expect("[")
        while True:
            yield from self._one_call()
            if (yield from self._skip_space()) != ",":
                break
            source.take(1)
        yield from self._skip_to("]")
        yield from self._skip_space()
        if (yield from source.ahead(len(PYTHON_END))) == PYTHON_END:
            source.take(len(PYTHON_END))

    def _one_call(self) -> Reading[None]:
        source = self._source
        yield from self._skip_space()
        name = yield from source.take_all(_NAME)
        if name not in self._names:
            raise Malformed
        yield from self._expect("(")
        if (yield from self._skip_space()) == ")":
            source.take(1)
            self._whole_call(name, "{}")
            return
        keyword = yield from self._keyword()
        index = self._begin(name)
        reader = PythonReader(source, lambda text: self._argue(index, text))
        self._argue(index, "{" + keyword)
        while True:
            yield from reader.value()
            if (yield from self._skip_space()) == ",":
                source.take(1)
                if (yield from self._skip_space()) != ")":
                    keyword = yield from self._keyword()
                    self._argue(index, ", " + keyword)
                    continue
            yield from self._expect(")")
            self._argue(index, "}")
            self._whole[-1] = True
            return

    def _keyword(self) -> Reading[str]:
        """As the key of a JSON object, with its colon."""
        keyword = yield from self._source.take_all(_KEYWORD)
        if not keyword:
            raise Malformed
        yield from self._skip_space()
        yield from self._expect("=")
        return f"{json.dumps(keyword, ensure_ascii=False)}: "
