"""What became of one request: the record that every number is computed from."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Outcome:
    """Times are in seconds on one clock.

    `scheduled` is when the request should have been sent, `sent` when it was; `events` are the arrivals of events with
    tokens. Tokens are the server's own count, or the number of events if it gives none. `error` is the kind of
    failure, None for a whole answer.
    """

    scheduled: float
    sent: float
    ended: float
    events: array[float]
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    error: str | None = None

    @property
    def ttft(self) -> float | None:
        """Seconds from the scheduled arrival to the first token; None if none came."""
        return self.events[0] - self.scheduled if self.events else None

    @property
    def e2e(self) -> float:
        """Seconds from the scheduled arrival to the last byte."""
        return self.ended - self.scheduled

    @property
    def itls(self) -> list[float]:
        """The gaps between events with tokens: one gap for each, however many tokens share the event that ends it."""
        return [later - earlier for earlier, later in pairwise(self.events)]

    @property
    def tpot(self) -> float | None:
        """Seconds for each token after the first: the time between first and last event, divided by its tokens."""
        if len(self.events) < 2 or self.output_tokens < 2:
            return None
        return (self.events[-1] - self.events[0]) / (self.output_tokens - 1)


def duration(outcomes: Sequence[Outcome]) -> float:
    return max(outcome.ended for outcome in outcomes) - min(outcome.scheduled for outcome in outcomes)


def whole(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """The answers that came to their end."""
    return [outcome for outcome in outcomes if outcome.error is None]


def ttfts(outcomes: Iterable[Outcome]) -> list[float]:
    return [outcome.ttft for outcome in outcomes if outcome.ttft is not None]


def itls(outcomes: Iterable[Outcome]) -> list[float]:
    return [gap for outcome in outcomes for gap in outcome.itls]


def tpots(outcomes: Iterable[Outcome]) -> list[float]:
    return [outcome.tpot for outcome in outcomes if outcome.tpot is not None]


def e2es(outcomes: Iterable[Outcome]) -> list[float]:
    return [outcome.e2e for outcome in outcomes]
