"""What it costs to run a request on a replica, in seconds."""

from __future__ import annotations

from cluster.router.load import ReplicaLoad

UNMEASURED_PREFILL_RATE = 10_000.0  # tokens/s, until a replica has measured its own


def ttft_seconds(load: ReplicaLoad, uncached_tokens: int) -> float:
    """Predicted time to first token: the prompts ahead, then this one, at the measured prefill rate, and the step
    under way."""
    rate = load.report.prefill_rate or UNMEASURED_PREFILL_RATE
    return load.report.step_seconds + (load.queued_tokens + uncached_tokens) / rate


def imposed_seconds(load: ReplicaLoad, uncached_tokens: int) -> float:
    """How long this prompt's computation holds up the requests that run there, averaged over all that run."""
    rate = load.report.prefill_rate or UNMEASURED_PREFILL_RATE
    busy = load.running / (load.running + 1)
    return busy * uncached_tokens / rate


def cost_seconds(load: ReplicaLoad, uncached_tokens: int) -> float:
    return ttft_seconds(load, uncached_tokens) + imposed_seconds(load, uncached_tokens)
