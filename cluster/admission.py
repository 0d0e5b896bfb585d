"""Whether a request is worth queueing: will there be room for it, and will it have its first token in time?

Refusing at once what would be late anyway keeps the queue short, and so keeps those in time who are taken: goodput does
not fall when load goes on rising. Pure: time is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf
from typing import Literal

Reason = Literal["queue_full", "deadline"]

RATE_SPAN_SECONDS = 3.0
REST_SPANS = 10.0
HEADROOM = 0.6  # what may be planned of the time that is left for waiting: replicas free up in bursts, and others come


class ReleaseRate:
    """Tokens per second that leave a queue while something waits in it: the capacity behind it, as far as it can be
    seen from here. Only those seconds count in which something waited. They fade exponentially, and in times of rest,
    too, if more slowly: what was learnt is not believed for ever."""

    def __init__(self, span: float = RATE_SPAN_SECONDS) -> None:
        self._span = span
        self._seconds = 0.0
        self._tokens = 0.0
        self._now = 0.0

    def advance(self, now: float, waited: bool) -> None:
        """Until `now`, something waited all the time or never did."""
        fading = exp((self._now - now) / (self._span if waited else REST_SPANS * self._span))
        self._seconds *= fading
        self._tokens *= fading
        if waited:
            self._seconds += self._span * (1 - fading)
        self._now = now

    def add(self, tokens: int) -> None:
        """So many have left now."""
        self._tokens += tokens

    def per_second(self, pending: int) -> float:
        """Infinite before anything has waited. As long as nothing has left, `pending` tokens are taken to be just
        about to."""
        return max(self._tokens, pending) / self._seconds if self._seconds > 1e-9 else inf


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a request has to expect. Tokens: its own, those of its key that wait already, and what it would leave free.
    Seconds: since it came, until it leaves the queue, then until its first token, and how much of that is the computing
    of its own prompt."""

    tokens: int
    key_tokens: int
    free_tokens: int
    passed: float
    wait: float
    ttft: float
    own_prefill: float


@dataclass(frozen=True, slots=True)
class Refusal:
    """`retry_after`: seconds after which the request would be taken, if nobody else came."""

    reason: Reason
    retry_after: float


def time_allowed(objective: float, own_prefill: float) -> float:
    """Seconds from arrival to first token. A prompt that is too long for the objective even on an idle replica may not
    be refused for ever, so it may be held up as long as others may."""
    return objective if own_prefill < objective / 2 else objective + own_prefill


def judge(outlook: Outlook, objective: float | None, rate: float) -> Refusal | None:
    """None: let it wait. `objective` is the time to first token that it must have, if any; `rate` that of the queue.

    A key may take as much of the queue as it leaves free (Choudhury and Hahne's dynamic threshold, 1998): one alone
    fills half of it, two a third each, and there is always something left for who comes next."""
    excess = outlook.key_tokens + outlook.tokens - outlook.free_tokens
    if excess > 0:
        return Refusal("queue_full", excess / rate)
    if objective is None:
        return None
    allowed = time_allowed(objective, outlook.own_prefill)
    late = outlook.passed + outlook.wait / HEADROOM + outlook.ttft - allowed
    return Refusal("deadline", late) if late > 0 else None
