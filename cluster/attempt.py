"""One request at one replica, until an answer or the replica's fate ends it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from cluster.codec import Finished, Refused, Stranger, decode_answer
from cluster.errors import ReplicaFullError, ReplicaGoneError
from cluster.failover import Broken

log = logging.getLogger(__name__)

ACCEPT_SECONDS = 2.0
RETRY_MOVE_SECONDS = 1.0

Outcome = Finished | Refused | Stranger | Broken


class Attempt:
    """A guest of a replica: it hears from its host, its host's connection and Serve, and whoever is first decides its
    `outcome`. A draining host is left after `move_after` seconds, as soon as `can_move` says that there is another."""

    def __init__(self, move_after: float, can_move: Callable[[], bool]) -> None:
        self._loop = asyncio.get_running_loop()
        self.outcome: asyncio.Future[Outcome] = self._loop.create_future()
        self._move_after = move_after
        self._can_move = can_move
        self._timer: asyncio.TimerHandle | None = self._loop.call_later(ACCEPT_SECONDS, self._end, Broken.SILENT)

    def on_accepted(self) -> None:
        """The replica's process has the request."""
        self._stop_timer()

    def on_lost(self) -> None:
        """The engine is dead, stands still or cannot be reached."""
        self._end(Broken.LOST)

    def on_draining(self) -> None:
        """Short requests end where they are, long ones go on elsewhere."""
        self._stop_timer()
        if not self.outcome.done():
            self._timer = self._loop.call_later(self._move_after, self._move)

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
        self._stop_timer()
        self.outcome.cancel()

    def _move(self) -> None:
        if self._can_move():
            self._end(Broken.MOVED)
        else:
            self._timer = self._loop.call_later(RETRY_MOVE_SECONDS, self._move)

    def _end(self, outcome: Outcome) -> None:
        self._stop_timer()
        if not self.outcome.done():
            self.outcome.set_result(outcome)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
