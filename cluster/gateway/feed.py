"""The tokens of one request as they reach the gateway, from the bus and, in the end, from the unary call."""

from __future__ import annotations

import asyncio

from cluster.codec import TokenRow
from replicas.messages import FinishReason, RequestSummary


class TokenFeed:
    """Joins bus events and the summary into one gapless sequence of tokens, each exactly once.

    Events that repeat tokens are dropped. After a gap events are dropped too, until the summary, which has all
    tokens, fills it: a lost message delays text but never loses it. One reader, which may sleep in `next`.
    """

    __slots__ = ("_error", "_pending", "_waiter", "attempt", "finish_reason", "received", "request_id", "summary")

    def __init__(self, request_id: str, attempt: int = 0) -> None:
        self.request_id = request_id
        self.attempt = attempt
        self.received = 0
        self.finish_reason: FinishReason | None = None
        self.summary: RequestSummary | None = None
        self._pending: list[int] = []
        self._error: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None

    def push(self, row: TokenRow) -> None:
        """Take in one bus event."""
        if row.offset != self.received or row.attempt != self.attempt or self.finish_reason is not None:
            return
        self._pending += row.token_ids
        self.received += len(row.token_ids)
        self.finish_reason = row.finish_reason
        self._wake()

    def end(self, summary: RequestSummary) -> None:
        """The unary call returned: whatever the bus has not delivered is in here."""
        self.summary = summary
        self._pending += summary.token_ids[self.received :]
        self.received = len(summary.token_ids)
        self.finish_reason = summary.finish_reason
        self._wake()

    def fail(self, error: BaseException) -> None:
        """The unary call failed: the reader gets what has arrived, then the error."""
        self._error = error
        self._wake()

    async def next(self) -> tuple[list[int], FinishReason | None]:
        """All tokens that wait (at least one, unless the request ends without), and the reason if these are the
        last ones. Raises what the unary call raised."""
        while not self._pending and self.finish_reason is None:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        token_ids, self._pending = self._pending, []
        return token_ids, self.finish_reason

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
