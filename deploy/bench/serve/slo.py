"""Service level objectives, and goodput: the requests that were served within them, out of all that were sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deploy.bench.serve.outcome import Outcome

ITL_SHARE = 0.99  # of a request's gaps must be within the objective


@dataclass(frozen=True, slots=True)
class Slo:
    """Seconds that a request may take; None: as long as it likes."""

    ttft: float | None = None
    itl: float | None = None
    tpot: float | None = None
    e2e: float | None = None

    def __bool__(self) -> bool:
        return any(limit is not None for limit in (self.ttft, self.itl, self.tpot, self.e2e))

    def keeps(self, outcome: Outcome) -> bool:
        """Whether the answer was whole and in time. A refused or failed request is in time for nothing."""
        if outcome.error is not None:
            return False
        return (
            _within(outcome.ttft, self.ttft)
            and _within(outcome.tpot, self.tpot)
            and _within(outcome.e2e, self.e2e)
            and self._keeps_itl(outcome)
        )

    def _keeps_itl(self, outcome: Outcome) -> bool:
        if self.itl is None:
            return True
        gaps = outcome.itls
        return sum(gap <= self.itl for gap in gaps) >= ITL_SHARE * len(gaps)


def attainment(outcomes: Sequence[Outcome], slo: Slo) -> float:
    """The share of all requests, refused and failed ones included, that were served within the objectives."""
    return sum(slo.keeps(outcome) for outcome in outcomes) / len(outcomes)


def _within(seconds: float | None, limit: float | None) -> bool:
    return limit is None or seconds is None or seconds <= limit
