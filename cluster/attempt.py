"""One request at one replica, until an answer or the replica's fate ends it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from cluster.codec import Finished, Refused, Stranger, decode_answer
from cluster.errors import ReplicaFullError, ReplicaGoneError
from cluster.failover import Broken
from cluster.fleet import Member
from cluster.token_feed import TokenFeed

log = logging.getLogger(__name__)

TAKE_SECONDS = 2.0
TAKE_REPORTS = 3
RETRY_MOVE_SECONDS = 1.0

Outcome = Finished | Refused | Stranger | Broken


class Attempt:
    """A guest of a replica: it hears from its host, its host's connection and Serve, and whoever is first decides its
    `outcome`. A draining host is left after `move_after` seconds, as soon as `can_move` says that there is another.

    The engine acknowledges a request in its load reports. One that goes on reporting and does not is never going to:
    the replica's process, which should have passed the request on, stands still. An engine in a long step is silent
    altogether, and is waited for.
    """

    def __init__(self, host: Member, feed: TokenFeed, move_after: float, can_move: Callable[[], bool]) -> None:
        self._loop = asyncio.get_running_loop()
        self.outcome: asyncio.Future[Outcome] = self._loop.create_future()
        self._host = host
        self._feed = feed
        self._move_after = move_after
        self._can_move = can_move
        self._reports_before = host.reports
        self._taking = self._loop.call_later(TAKE_SECONDS, self._check_taken)
        self._moving: asyncio.TimerHandle | None = None

    def on_taken(self) -> None:
        """The engine has the request."""
        self._taking.cancel()

    def on_lost(self) -> None:
        """The engine is dead, stands still or cannot be reached."""
        self._end(Broken.LOST)

    def on_draining(self) -> None:
        """Short requests end where they are, long ones go on elsewhere."""
        if self._moving is None and not self.outcome.done():
            self._moving = self._loop.call_later(self._move_after, self._move)

    def on_answer(self, call: asyncio.Task[bytes]) -> None:
        """The unary call has ended."""
        if call.cancelled():
            self._end(Broken.LOST)
            return
        match call.exception():
            case None:
                self._end(decode_answer(call.result()))
            case ReplicaFullError():
                self._end(Broken.FULL)
            case ReplicaGoneError():
                self._end(Broken.GONE)
            case error:
                log.info("a call to a replica failed", exc_info=error)
                self._end(Broken.LOST)

    def close(self) -> None:
        self._stop_timers()
        self.outcome.cancel()

    def _check_taken(self) -> None:
        if self._feed.has_begun or self._feed.new_tokens:
            return
        if self._host.reports - self._reports_before >= TAKE_REPORTS:
            self._end(Broken.SILENT)
        else:
            self._taking = self._loop.call_later(TAKE_SECONDS, self._check_taken)

    def _move(self) -> None:
        if self._can_move():
            self._end(Broken.MOVED)
        else:
            self._moving = self._loop.call_later(RETRY_MOVE_SECONDS, self._move)

    def _end(self, outcome: Outcome) -> None:
        self._stop_timers()
        if not self.outcome.done():
            self.outcome.set_result(outcome)

    def _stop_timers(self) -> None:
        self._taking.cancel()
        if self._moving is not None:
            self._moving.cancel()
