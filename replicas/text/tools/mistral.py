"""Calls of Mistral's models behind [TOOL_CALLS]: first a JSON list of objects with name and arguments, since version 11
of their tokenizer name[ARGS]{...}, perhaps with [CALL_ID]... between the two."""

from __future__ import annotations

import re
import secrets
import string
from hashlib import sha256

from replicas.text.tools.arriving import Reading
from replicas.text.tools.json_calls import JsonCallParser
from replicas.text.tools.json_reader import Malformed

TOOL_CALLS, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"

_NAME = re.compile(r"[\w.:/-]*")
_ID_CHARACTERS = string.ascii_letters + string.digits


def new_mistral_id() -> str:
    """Nine letters and digits: their templates refuse anything else."""
    return "".join(secrets.choice(_ID_CHARACTERS) for _ in range(9))


def fit_mistral_id(call_id: str) -> str:
    """The id of a call that another server gave, in the form that the templates take."""
    if len(call_id) == 9 and set(call_id) <= set(_ID_CHARACTERS):
        return call_id
    return sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:9]


class MistralParser(JsonCallParser):
    openings = (TOOL_CALLS,)

    def _call(self, opening: str) -> Reading[None]:
        self._source.take(len(opening))
        first = yield from self._skip_space()
        if first and first in "[{":
            yield from self._json_calls(known_only=False)
        else:
            yield from self._named_call()

    def _named_call(self) -> Reading[None]:
        source = self._source
        name = yield from source.take_all(_NAME)
        if not name:
            raise Malformed
        yield from self._skip_space()
        if (yield from source.ahead(len(CALL_ID))) == CALL_ID:
            source.take(len(CALL_ID))
            yield from source.take_all(_NAME)
        if (yield from self._skip_space()) == "[":
            yield from self._expect(ARGS)
        if (yield from self._skip_space()) != "{":
            raise Malformed
        yield from self._stream_arguments(name)
