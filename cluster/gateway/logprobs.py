"""Log probabilities as OpenAI's two endpoints show them, and vLLM's form for prompts.

A token that is no text of its own, having part of a character, is written `bytes:\\xf0\\x9f`. JSON has no infinity:
what can never be drawn has the log probability -9999.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any

from cluster.gateway.text_stream import ScoredToken
from replicas.messages import PromptLogprobs, TokenLogprobs
from replicas.text.tokenizer import Tokenizer

IMPOSSIBLE = -9999.0


def spelling(tokenizer: Tokenizer, token_id: int) -> str:
    """A token as text, different for all tokens that have different bytes."""
    data = _token_bytes(tokenizer, token_id)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def chat_logprobs(tokenizer: Tokenizer, tokens: Iterable[ScoredToken], skip_special: bool = True) -> dict[str, Any]:
    """A choice's `logprobs` in chat: one entry for each token. The joined `bytes` of the entries are the text, with
    the stop string that ended it; a token that is not shown has none."""
    hidden = tokenizer.special_ids if skip_special else frozenset[int]()
    return {"content": [_entry(tokenizer, token, hidden) for token in tokens], "refusal": None}


class CompletionLogprobs:
    """The `logprobs` of one choice of a text completion, portion by portion: `text_offset` counts on over them from
    `offset`, the length of the text before the first."""

    def __init__(self, tokenizer: Tokenizer, offset: int = 0) -> None:
        self._tokenizer = tokenizer
        self._offset = offset
        self._decoder = getincrementaldecoder("utf-8")("replace")

    def portion(self, tokens: Sequence[ScoredToken]) -> dict[str, list[Any]]:
        tokenizer = self._tokenizer
        return {
            "text_offset": [self._pass(token) for token in tokens],
            "token_logprobs": [token.logprobs and finite(token.logprobs.logprob) for token in tokens],
            "tokens": [spelling(tokenizer, token.token_id) for token in tokens],
            "top_logprobs": [_alternatives(tokenizer, token) for token in tokens],
        }

    def _pass(self, token: ScoredToken) -> int:
        """Where the token begins: a part of a character begins where its character does."""
        offset = self._offset
        self._offset += len(self._decoder.decode(token.shown or b""))
        return offset


def prompt_logprobs(
    tokenizer: Tokenizer, token_ids: Sequence[int], scores: PromptLogprobs, count: int
) -> list[dict[str, Any] | None]:
    """vLLM's `prompt_logprobs`: for each token but the first its own log probability and those of the `count`
    likeliest, by token id. The rank of a token that is not among these is not known."""
    return [
        _ranked(tokenizer, token_id, score, count) if score is not None else None
        for token_id, score in zip(token_ids, scores, strict=True)
    ]


def finite(logprob: float) -> float:
    return logprob if isfinite(logprob) else IMPOSSIBLE


def _entry(tokenizer: Tokenizer, token: ScoredToken, hidden: frozenset[int]) -> dict[str, Any]:
    assert token.logprobs is not None, "only a prompt's first token has no log probability"
    top = [
        {
            "token": spelling(tokenizer, token_id),
            "logprob": finite(logprob),
            "bytes": None if token_id in hidden else list(_token_bytes(tokenizer, token_id)),
        }
        for token_id, logprob in token.logprobs.top
    ]
    return {
        "token": spelling(tokenizer, token.token_id),
        "logprob": finite(token.logprobs.logprob),
        "bytes": None if token.shown is None else list(token.shown),
        "top_logprobs": top,
    }


def _alternatives(tokenizer: Tokenizer, token: ScoredToken) -> dict[str, float] | None:
    """OpenAI's map of the likeliest tokens and the drawn one. Where two are spelled alike the likelier one counts."""
    if token.logprobs is None:
        return None
    ranked = [*token.logprobs.top, (token.token_id, token.logprobs.logprob)]
    found: dict[str, float] = {}
    for token_id, logprob in ranked:
        found.setdefault(spelling(tokenizer, token_id), finite(logprob))
    return found


def _ranked(tokenizer: Tokenizer, token_id: int, score: TokenLogprobs, count: int) -> dict[str, Any]:
    top = score.top[:count]
    ranks = {other: rank for rank, (other, _) in enumerate(score.top, start=1)}
    return {
        str(other): {
            "logprob": finite(logprob),
            "rank": ranks.get(other),
            "decoded_token": spelling(tokenizer, other),
        }
        for other, logprob in dict([(token_id, score.logprob), *top]).items()
    }


def _token_bytes(tokenizer: Tokenizer, token_id: int) -> bytes:
    """Ids beyond the vocabulary, which a model may have, stand for nothing."""
    return tokenizer.token_bytes[token_id] if token_id < tokenizer.vocab_size else b""
