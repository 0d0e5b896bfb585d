"""The configuration file that a tuning ends in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from deploy.config import ModelSection
from deploy.errors import UserError
from deploy.tune.settings import Setting
from deploy.tune.trials import Objectives
from replicas.config import EngineConfig

_DEFAULTS = EngineConfig()


def check_place(file: Path) -> None:
    """Tell before a long search that the file cannot be written. Raises UserError."""
    if file.exists():
        raise UserError(f"{file} exists already: name another file with --write, or move it away")
    if not file.absolute().parent.is_dir():
        raise UserError(f"{file} cannot be written: there is no such folder")


def configuration(model: ModelSection, config: EngineConfig, tuned: Setting, objectives: Objectives, found: str) -> str:
    """A file for `mobula serve` that says only what differs from the defaults, and why."""
    engine: dict[str, Any] = {"max_batched_tokens": tuned.max_batched_tokens, "max_running": tuned.max_running}
    for name in ("dtype", "quantization", "threads"):
        if getattr(config, name) != getattr(_DEFAULTS, name):
            engine[name] = getattr(config, name)
    slo = {"ttft_p99": _duration(objectives.ttft_p99)}
    if tuned.chunk_share is not None:
        slo["itl_p99"] = _duration(tuned.chunk_share * objectives.itl_p99)
    section = {"id": model.id, "source": model.source, "engine": engine, "slo": slo}
    comment = f"# {found}\n# itl_p99 is what the scheduler cuts prompts for; the objective itself was "
    comment += f"{_duration(objectives.itl_p99)}.\n"
    return comment + yaml.safe_dump({"models": [section]}, sort_keys=False, allow_unicode=True)


def _duration(seconds: float) -> str:
    return f"{seconds * 1e3:g}ms"
