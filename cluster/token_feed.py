"""The tokens of one request as they reach the gateway, from the bus and, in the end, from the unary call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from cluster.codec import TokenRow
from replicas.messages import FinishReason, PromptLogprobs, RequestSummary, TokenLogprobs


class FedTokens(NamedTuple):
    """New tokens, with their log probabilities if the request asked for them, and the reason if they are the last."""

    token_ids: list[int]
    logprobs: list[TokenLogprobs]
    finish_reason: FinishReason | None


class TokenFeed:
    """Joins bus events and the summary into one gapless sequence of tokens, each exactly once, over all attempts.

    Events that repeat tokens are dropped. After a gap events are dropped too, until the summary, which has all
    tokens, fills it: a lost message delays text but never loses it. One reader, which may sleep in `next`. The
    prompt's log probabilities, if asked for, are known when the first token is.
    """

    __slots__ = (
        "_error",
        "_on_first_token",
        "_read",
        "_resumed",
        "_waiter",
        "finish_reason",
        "has_begun",
        "logprobs",
        "prompt_logprobs",
        "summary",
        "token_ids",
    )

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.prompt_logprobs: PromptLogprobs = ()
        self.finish_reason: FinishReason | None = None
        self.summary: RequestSummary | None = None
        self.has_begun = False
        self._resumed = 0
        self._read = 0
        self._on_first_token: Callable[[], None] | None = None
        self._error: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def new_tokens(self) -> int:
        """Tokens that have come of the present attempt."""
        return len(self.token_ids) - self._resumed

    def begin_attempt(self, on_first_token: Callable[[], None]) -> None:
        """An attempt goes on behind the tokens that have come."""
        self._resumed = len(self.token_ids)
        self.has_begun = False
        self._on_first_token = on_first_token

    def began(self) -> None:
        """The engine is about to compute the present attempt's first step."""
        self.has_begun = True

    def push(self, row: TokenRow) -> None:
        """Take in one bus event."""
        if row.offset != len(self.token_ids) or self.finish_reason is not None:
            return
        self.token_ids += row.token_ids
        self.logprobs += row.logprobs
        self.prompt_logprobs = self.prompt_logprobs or row.prompt_logprobs
        self.finish_reason = row.finish_reason
        if self._on_first_token is not None:
            self._on_first_token()
            self._on_first_token = None
        self._wake()

    def end(self, summary: RequestSummary) -> None:
        """The unary call returned: whatever the bus has not delivered is in here."""
        self.summary = summary
        self.logprobs += summary.logprobs[self.new_tokens :]
        self.token_ids += summary.token_ids[len(self.token_ids) :]
        self.prompt_logprobs = self.prompt_logprobs or summary.prompt_logprobs
        self.finish_reason = summary.finish_reason
        self._wake()

    def fail(self, error: BaseException) -> None:
        """The request failed: the reader gets what has arrived, then the error."""
        self._error = error
        self._wake()

    async def next(self) -> FedTokens:
        """All tokens that wait: at least one, unless the request ends without. Raises what the request failed with."""
        while self._read == len(self.token_ids) and self.finish_reason is None:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        first, self._read = self._read, len(self.token_ids)
        return FedTokens(self.token_ids[first:], self.logprobs[first:], self.finish_reason)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
