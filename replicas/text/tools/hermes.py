"""Calls of Hermes, Qwen and their kin: <tool_call>{"name": ..., "arguments": {...}}</tool_call>."""

from __future__ import annotations

from replicas.text.tools.arriving import Reading
from replicas.text.tools.json_calls import JsonCallParser


class HermesParser(JsonCallParser):
    openings = ("<tool_call>",)

    def _call(self, opening: str) -> Reading[None]:
        self._source.take(len(opening))
        yield from self._json_calls(known_only=False)
        yield from self._skip_to("</tool_call>")
