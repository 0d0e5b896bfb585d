"""The results as JSON: what a person reads, and every request for whoever wants to compute something else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from deploy.bench.serve.outcome import Outcome
from deploy.bench.serve.session import Compared, Measured, Step
from deploy.bench.serve.sweep import highest_held


def measured_record(measured: Measured, asked: Mapping[str, Any]) -> dict[str, Any]:
    return {"asked": dict(asked), **_server(measured), "requests": _requests(measured)}


def sweep_record(steps: Sequence[Step], asked: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "asked": dict(asked),
        "highest_rate": highest_held([step.trial for step in steps]),
        "steps": [{**asdict(step.trial), **_server(step.measured)} for step in steps],
    }


def compared_record(compared: Compared, asked: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "asked": dict(asked),
        "pairs": compared.pairs,
        "ratios": [asdict(ratio) for ratio in compared.ratios],
        "servers": [_server(compared.first), _server(compared.second)],
    }


def _server(measured: Measured) -> dict[str, Any]:
    dialect = measured.target.dialect
    server = {"url": measured.target.url, "path": dialect.path, "model": dialect.model, "token_ids": dialect.ids}
    return {"server": {**server, "exact_prompts": dialect.exact}, "summary": asdict(measured.summary)}


def _requests(measured: Measured) -> list[dict[str, Any]]:
    zero = min(outcome.scheduled for outcome in measured.run.outcomes)
    return [_request(outcome, zero) for outcome in measured.run.outcomes]


def _request(outcome: Outcome, zero: float) -> dict[str, Any]:
    """Times in seconds; `events` from the scheduled arrival on."""
    return {
        "scheduled": round(outcome.scheduled - zero, 6),
        "sent": round(outcome.sent - zero, 6),
        "ended": round(outcome.ended - zero, 6),
        "events": [round(at - outcome.scheduled, 6) for at in outcome.events],
        "prompt_tokens": outcome.prompt_tokens,
        "cached_tokens": outcome.cached_tokens,
        "output_tokens": outcome.output_tokens,
        "error": outcome.error,
    }
