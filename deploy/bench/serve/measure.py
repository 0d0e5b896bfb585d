"""The numbers of a run, computed from its outcomes alone.

Latencies are those of whole answers. Refused and failed requests have none; they count in goodput, and by kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from deploy.bench.serve.generator import Run
from deploy.bench.serve.outcome import e2es, itls, tpots, ttfts, whole
from deploy.bench.serve.slo import Slo, attainment

BUSY_SHARE = 0.7  # of a core: from here on the generator may itself be what is slow
LATE_SECONDS = 0.010


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles, in seconds."""

    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class Goodput:
    """Requests within the objectives: out of all, and a second."""

    share: float
    rate: float


@dataclass(frozen=True, slots=True)
class Effort:
    """What the generator cost: share of one core, CPU seconds an event, and how late it sent."""

    cpu_share: float
    cpu_per_event: float
    late: Spread

    @property
    def complaint(self) -> str | None:
        """Why the numbers are in doubt, if they are."""
        if self.cpu_share > BUSY_SHARE:
            return f"the generator used {self.cpu_share:.0%} of a core: it may have been the bottleneck"
        if self.late.p99 > LATE_SECONDS:
            return (
                f"the generator could not keep up with its own schedule: 1 % of the requests were sent more than "
                f"{self.late.p99 * 1e3:.0f} ms late, which the latencies include; it used {self.cpu_share:.1%} of a "
                f"core, so something else kept this machine busy"
            )
        return None


@dataclass(frozen=True, slots=True)
class Summary:
    """Rates are a second, over the time from the first scheduled arrival to the last byte."""

    requests: int
    completed: int
    errors: dict[str, int]
    seconds: float
    request_rate: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    output_rate: float
    total_rate: float
    tokens_per_event: float
    ttft: Spread | None
    itl: Spread | None
    tpot: Spread | None
    e2e: Spread | None
    goodput: Goodput | None
    effort: Effort


def summarize(run: Run, slo: Slo) -> Summary:
    outcomes = run.outcomes
    answers = whole(outcomes)
    prompt_tokens = sum(outcome.prompt_tokens for outcome in answers)
    output_tokens = sum(outcome.output_tokens for outcome in answers)
    events = sum(len(outcome.events) for outcome in answers)
    share = attainment(outcomes, slo) if slo else None
    return Summary(
        requests=len(outcomes),
        completed=len(answers),
        errors=dict(Counter(outcome.error for outcome in outcomes if outcome.error is not None).most_common()),
        seconds=run.seconds,
        request_rate=len(answers) / run.seconds,
        prompt_tokens=prompt_tokens,
        cached_tokens=sum(outcome.cached_tokens for outcome in answers),
        output_tokens=output_tokens,
        output_rate=output_tokens / run.seconds,
        total_rate=(prompt_tokens + output_tokens) / run.seconds,
        tokens_per_event=output_tokens / events if events else 0.0,
        ttft=spread(ttfts(answers)),
        itl=spread(itls(answers)),
        tpot=spread(tpots(answers)),
        e2e=spread(e2es(answers)),
        goodput=None if share is None else Goodput(share, share * len(outcomes) / run.seconds),
        effort=_effort(run),
    )


def spread(values: Iterable[float]) -> Spread | None:
    """None of nothing."""
    found = np.fromiter(values, float)
    if not found.size:
        return None
    p50, p90, p99 = np.percentile(found, (50, 90, 99)).tolist()
    return Spread(p50, p90, p99)


def _effort(run: Run) -> Effort:
    late = spread(outcome.sent - outcome.scheduled for outcome in run.outcomes)
    assert late is not None, "a run has requests"
    events = sum(len(outcome.events) for outcome in run.outcomes)
    return Effort(run.cpu_seconds / run.seconds, run.cpu_seconds / max(1, events), late)
