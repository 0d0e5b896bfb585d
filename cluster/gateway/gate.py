"""Where requests wait when the replicas are full: here, where it can still be chosen who goes next, not in an engine.

With room behind it the gate stands open. When there is none, a request is either refused at once or takes its place in
the queue, and leaves it when a replica has room, when its deadline has become hopeless, or when its client goes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import isinf
from typing import Protocol

from cluster.admission import Outlook, Reason, Refusal, ReleaseRate, judge, time_allowed
from cluster.fair_queue import FairQueue
from cluster.gateway.errors import ApiError, too_many_requests
from cluster.metrics import GatewayMetrics

LOOK_SECONDS = 0.05  # how long a load report may be missed
EXPECTED_OUTPUT_TOKENS = 128.0  # until answers have been seen
OUTPUT_MEMORY = 0.05  # what one answer weighs in the mean of all

MESSAGES: dict[Reason, str] = {
    "queue_full": "The server is overloaded: its queue is full.",
    "deadline": "The server is overloaded: the first token would come too late.",
}


class Capacity(Protocol):
    """The replicas behind the gate, as the router sees them."""

    def has_room(self) -> bool:
        """Whether some replica would begin soon with one more request."""

    def best_ttft(self, num_tokens: int) -> float:
        """Time to first token of such a prompt where it would be shortest; infinite if there is no replica."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """What the gate must know of a request. `arrival` is by the gate's clock; `patient` ones have no deadline."""

    key: str
    priority: int
    num_tokens: int
    max_tokens: int
    arrival: float
    patient: bool = False


@dataclass(slots=True, eq=False)
class _Waiter:
    """A ticket in the queue. `turn` is set when it may go, or fails when it is refused."""

    key: str
    priority: int
    tokens: int
    turn: asyncio.Future[None]


class Gate:
    """One model's gate in one gateway. Belongs to an event loop. `objective` is the time to first token, in seconds,
    that requests must have; `max_queue_tokens` tells how many tokens may wait, which may change with the replicas. An
    empty queue takes any one request."""

    def __init__(
        self,
        model_id: str,
        capacity: Capacity,
        metrics: GatewayMetrics,
        max_queue_tokens: Callable[[], int],
        objective: float | None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._capacity = capacity
        self._max_queue_tokens = max_queue_tokens
        self._objective = objective
        self._clock = clock
        self._queue: FairQueue[_Waiter] = FairQueue()
        self._rate = ReleaseRate()
        self._mean_output = EXPECTED_OUTPUT_TOKENS
        self._is_to_look = False
        self._is_watched = False
        self._refusals = {reason: metrics.refusals.labels(model_id, reason) for reason in MESSAGES}
        self._wait_seconds = metrics.gate_wait.labels(model_id)
        metrics.gate_tokens.labels(model_id).set_function(lambda: self._queue.tokens)
        metrics.gate_requests.labels(model_id).set_function(lambda: len(self._queue))

    async def enter(self, ticket: Ticket) -> None:
        """Return when the request may be placed, which must be done before anything else is awaited. Raises ApiError
        429. A cancelled call leaves nothing behind. Where there are no replicas the gate lets everybody through to be
        told so."""
        if self._is_open_to(ticket):
            return
        tokens, turn = ticket.num_tokens + self._expected_output(ticket), asyncio.get_running_loop().create_future()
        waiter = _Waiter(ticket.key, ticket.priority, tokens, turn)
        started = self._clock()
        expiry = self._queue_up(ticket, waiter, started)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():  # else its turn had come, and is the next one's now
                self._take_out(waiter)
            raise
        finally:
            if expiry is not None:
                expiry.cancel()
            self.notify()
        self._wait_seconds.observe(self._clock() - started)

    def remaining_seconds(self, ticket: Ticket) -> float | None:
        """What is left of the time in which the request's first token is due, if it is due in any."""
        if self._objective is None or ticket.patient:
            return None
        return max(0.0, self._objective - (self._clock() - ticket.arrival))

    def notify(self) -> None:
        """The replicas' load has changed: let in whom there is room for."""
        if self._queue and not self._is_to_look:
            self._is_to_look = True
            asyncio.get_running_loop().call_soon(self._look)

    def ended(self, ticket: Ticket, output_tokens: int) -> None:
        """A request that was let in has ended; its key is charged for what it got instead of what was expected."""
        self._queue.charge(ticket.key, ticket.priority, output_tokens - self._expected_output(ticket))
        self._mean_output += OUTPUT_MEMORY * (output_tokens - self._mean_output)

    def _is_open_to(self, ticket: Ticket) -> bool:
        """Nobody waits, there is room, and the first token would come in time. Or there are no replicas."""
        is_free, objective = not self._queue and self._capacity.has_room(), self._objective_of(ticket)
        if is_free and objective is None:
            return True
        ttft = self._capacity.best_ttft(ticket.num_tokens)
        return isinf(ttft) or (is_free and objective is not None and ttft <= objective)

    def _queue_up(self, ticket: Ticket, waiter: _Waiter, now: float) -> asyncio.TimerHandle | None:
        """Raises ApiError 429, or returns the timer that takes the waiter out when its deadline has become hopeless."""
        self._advance(now)
        rate = self._rate.per_second(waiter.tokens)
        outlook = self._outlook(ticket, waiter.tokens, rate, now)
        objective = self._objective_of(ticket)
        if (refusal := judge(outlook, objective, rate)) is not None:
            raise self._refused(refusal)
        self._queue.push(waiter)
        if not self._is_watched:
            self._watch()
        if objective is None:
            return None
        due = time_allowed(objective, outlook.own_prefill) - outlook.passed - outlook.ttft
        return asyncio.get_running_loop().call_later(due, self._expire, waiter)

    def _outlook(self, ticket: Ticket, tokens: int, rate: float, now: float) -> Outlook:
        queue, ttft = self._queue, self._capacity.best_ttft(ticket.num_tokens)
        return Outlook(
            tokens=tokens,
            key_tokens=queue.key_tokens(ticket.key, ticket.priority),
            free_tokens=max(self._max_queue_tokens() - queue.tokens - tokens, 0 if queue else tokens),
            passed=now - ticket.arrival,
            wait=(queue.tokens_ahead(ticket.key, ticket.priority) + tokens) / rate,
            ttft=ttft,
            own_prefill=ttft - self._capacity.best_ttft(0),
        )

    def _has_room(self) -> bool:
        return self._capacity.has_room() or isinf(self._capacity.best_ttft(0))

    def _look(self) -> None:
        """Let in one, and look again when it has been placed: its task is resumed before this is called again."""
        self._is_to_look = False
        if not self._queue or not self._has_room():
            return
        self._advance(self._clock())
        waiter = self._queue.pop()
        self._rate.add(waiter.tokens)
        waiter.turn.set_result(None)
        self.notify()

    def _watch(self) -> None:
        """Look now and then while something waits, whether or not somebody notifies."""
        self.notify()
        self._is_watched = bool(self._queue)
        if self._is_watched:
            asyncio.get_running_loop().call_later(LOOK_SECONDS, self._watch)

    def _expire(self, waiter: _Waiter) -> None:
        if waiter.turn.done():
            return
        self._take_out(waiter)
        wait = self._queue.tokens_ahead(waiter.key, waiter.priority) / self._rate.per_second(waiter.tokens)
        waiter.turn.set_exception(self._refused(Refusal("deadline", wait)))

    def _take_out(self, waiter: _Waiter) -> None:
        self._advance(self._clock())
        self._queue.remove(waiter)

    def _advance(self, now: float) -> None:
        """To be called before the queue changes."""
        self._rate.advance(now, waited=bool(self._queue))

    def _objective_of(self, ticket: Ticket) -> float | None:
        return None if ticket.patient else self._objective

    def _expected_output(self, ticket: Ticket) -> int:
        return min(ticket.max_tokens, round(self._mean_output))

    def _refused(self, refusal: Refusal) -> ApiError:
        self._refusals[refusal.reason].inc()
        return too_many_requests(MESSAGES[refusal.reason], refusal.retry_after, "overloaded")
