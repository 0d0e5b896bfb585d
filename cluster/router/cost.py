"""What it costs to run a request on a replica, in seconds of waiting.

Its first token comes after the prompts that are computed before its own, and its own. What its prompt takes, others
pay as well: those whom it overtakes, those who come after it, those whose answers stand still meanwhile, and those
whose part of the cache it displaces. So a request rather waits for the replica that holds its prefix than has it
computed elsewhere, as long as that wait is not longer than all this.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cluster.router.load import UNMEASURED_PREFILL_RATE
from cluster.router.load_table import Column, Loads

UNDER_WAY = 2  # prompts that a replica may be computing, beside those that wait there
FOLLOWERS = 3  # requests that come before a busy replica is idle again, on average, and wait for this one's prompt too
ANSWER_SHARE = 0.05  # a second in the middle of an answer is so much of one before its first token (2 s against 40 s)
ANSWER_TOKENS = 256  # of a usual answer


@dataclass(frozen=True, slots=True)
class FleetFigures:
    """What holds for a model's replicas alike: they run one engine on one kind of device, and where their measurements
    differ, it is as a rule for what they happened to compute. `hit_rate` is the share of prompt tokens that were found
    in a cache, `churn` the blocks that a replica stored lately, on average, `decode_step_seconds` the shortest."""

    prefill_rate: float = UNMEASURED_PREFILL_RATE
    hit_rate: float = 0.0
    churn: float = 0.0
    decode_step_seconds: float = 0.0


def ttft_seconds(loads: Loads, uncached_tokens: Column | int) -> Column:
    """Predicted time to first token on each replica: the prompts ahead, then this one, at the measured prefill rate,
    and the step under way."""
    return loads.step_seconds + (loads.queued_tokens + uncached_tokens) / loads.prefill_rate


def cost_seconds(loads: Loads, uncached_tokens: Column, fleet: FleetFigures) -> Column:
    """Seconds of waiting, this request's and the others', if it goes to each replica."""
    waits = waiting_tokens(loads, uncached_tokens, fleet.prefill_rate)
    overtakes = waits < loads.queued_tokens
    payers = 1 + overtakes + FOLLOWERS + ANSWER_SHARE * loads.running + displacement(loads, fleet)
    return (waits + uncached_tokens * payers) / fleet.prefill_rate + slower_answer_seconds(loads, fleet)


def waiting_tokens(loads: Loads, uncached_tokens: Column, prefill_rate: float) -> Column:
    """Prompt tokens that are computed before this one's: all that are queued or, where short prompts go first, of each
    prompt no more than this one has itself, and what the step under way still takes."""
    prompts = loads.queued + UNDER_WAY
    return np.minimum(loads.queued_tokens, prompts * uncached_tokens + loads.step_seconds * prefill_rate)


def displacement(loads: Loads, fleet: FleetFigures) -> Column | float:
    """Tokens that must be computed again later for one that is stored now. What is displaced is asked for again about
    as often as anything is found, and the more often the less time it has had: where more is stored."""
    return fleet.hit_rate * loads.churn / fleet.churn if fleet.churn else 0.0


def slower_answer_seconds(loads: Loads, fleet: FleetFigures) -> Column:
    """What its answer loses where decode steps are longer than elsewhere because many are running."""
    longer = np.maximum(loads.decode_step_seconds - fleet.decode_step_seconds, 0.0)
    return np.where(loads.running > 0, ANSWER_SHARE * ANSWER_TOKENS * longer, 0.0)
