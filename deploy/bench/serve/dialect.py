"""How to ask a server for a prompt of an exact number of tokens: found out by asking.

Token ids are exact, where the server takes them (`/v1/completions` of vLLM and ours). Elsewhere prompts are common
words, one token each in most vocabularies. Two prompts, of all the words once and twice, tell from the server's own
usage whether that is so here, and how many tokens it adds (a chat template, a BOS token), which then come off the
words.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from deploy.bench.serve.events import Usage
from deploy.bench.serve.http import Response
from deploy.bench.serve.words import FIRST_ID, WORDS, spelled, text, token_ids
from deploy.bench.serve.workload import Piece, Turn
from deploy.errors import UserError

_IGNORE_EOS = {"ignore_eos": True}  # so that answers have the planned length; not every server knows it

Ask = Callable[[str, bytes], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Dialect:
    """What a server understands. `overhead` tokens come on top of a prompt's words, each of which is
    `tokens_per_word` tokens; None if the server does not say how long prompts are."""

    model: str
    chat: bool
    ids: bool
    extra: Mapping[str, Any] = field(default_factory=dict)
    overhead: int = 0
    tokens_per_word: float | None = None

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    @property
    def exact(self) -> bool:
        """Whether prompts have the planned number of tokens."""
        return self.tokens_per_word == 1

    def body(self, turn: Turn) -> bytes:
        pieces = list(self._fitted(turn.prompt))
        prompt = token_ids(pieces) if self.ids else text(pieces)
        stream = {"stream": True, "stream_options": {"include_usage": True}}
        return msgspec.json.encode(self._fields(prompt, turn.max_tokens) | stream)

    def probe(self, times: int) -> bytes:
        """Asks for one token after all the words, or as many ids, so many times over."""
        prompt = list(range(FIRST_ID, FIRST_ID + len(WORDS))) * times if self.ids else spelled(WORDS * times)
        return msgspec.json.encode(self._fields(prompt, 1))

    def _fields(self, prompt: str | list[int], max_tokens: int) -> dict[str, Any]:
        asked = {"messages": [{"role": "user", "content": prompt}]} if self.chat else {"prompt": prompt}
        return {"model": self.model, "max_tokens": max_tokens, "temperature": 0, **asked, **self.extra}

    def _fitted(self, pieces: tuple[Piece, ...]) -> Iterable[Piece]:
        """Words instead of tokens, without those that the server adds by itself."""
        rate = self.tokens_per_word or 1.0
        for piece in pieces[:-1]:
            yield replace(piece, tokens=round(piece.tokens / rate))
        yield replace(pieces[-1], tokens=max(1, round((pieces[-1].tokens - self.overhead) / rate)))


async def learn_dialect(model: str, chat: bool, ask: Ask) -> Dialect:
    """Try the ways of asking, best first. Raises UserError with the server's words if it takes none of them."""
    refusal = Response(0, b"")
    for extra in (_IGNORE_EOS, {}):
        for ids in (False,) if chat else (True, False):
            learned = await _calibrated(Dialect(model, chat, ids, extra), ask)
            if isinstance(learned, Response):
                refusal = learned
            elif not ids or learned.exact:
                return learned
    raise UserError(f"the server refused with status {refusal.status}: {message_of(refusal.body)}")


def message_of(body: bytes) -> str:
    """The sentence in an error response."""
    try:
        answer = msgspec.json.decode(body)
        error = answer.get("error", answer)
        return str(error["message"] if isinstance(error, dict) else error)
    except (msgspec.DecodeError, AttributeError, KeyError):
        return body[:200].decode(errors="replace")


async def _calibrated(dialect: Dialect, ask: Ask) -> Dialect | Response:
    """With what two prompts cost; or the response that refused one of them."""
    counts = []
    for times in (1, 2):
        response = await ask(dialect.path, dialect.probe(times))
        if response.status != 200:
            return response
        counts.append(_prompt_tokens(response.body))
    short, long = counts
    if not short or long <= short:
        return dialect
    return replace(dialect, overhead=2 * short - long, tokens_per_word=(long - short) / len(WORDS))


def _prompt_tokens(body: bytes) -> int:
    class Answer(msgspec.Struct):
        usage: Usage | None = None

    try:
        usage = msgspec.json.decode(body, type=Answer).usage
    except msgspec.DecodeError as error:
        raise UserError(f"what answers is not an OpenAI-compatible server: {error}") from error
    return usage.prompt_tokens if usage else 0
