"""Calls that are JSON and nothing more, as Llama 3 writes them and models that were told to:
{"name": ..., "parameters": {...}}, several of them one after the other or in a list."""

from __future__ import annotations

from replicas.text.tools.arriving import Reading
from replicas.text.tools.json_calls import JsonCallParser

PYTHON_TAG = "<|python_tag|>"


class JsonParser(JsonCallParser):
    """Only calls of the request's tools: an answer may hold other JSON."""

    openings: tuple[str, ...] = ("{", "[")

    def _call(self, opening: str) -> Reading[None]:
        yield from self._json_calls(known_only=True)
        while (separator := (yield from self._skip_space())) and separator in ";,":
            self._source.take(1)
            yield from self._json_calls(known_only=True)


class LlamaParser(JsonParser):
    """Llama 3 may put <|python_tag|> before its calls."""

    openings = (PYTHON_TAG, "{", "[")

    def _call(self, opening: str) -> Reading[None]:
        if opening == PYTHON_TAG:
            self._source.take(len(opening))
        yield from super()._call(opening)
