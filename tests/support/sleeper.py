"""Engines that take their time and compute nothing: "tests.support.sleeper:unhurried"."""

from __future__ import annotations

from collections.abc import Callable

from deploy.bench.sleeping import build_sleeping_engine
from replicas.config import EngineConfig
from replicas.engine import Engine

STEP_SECONDS = 0.1


def unhurried(path: str, config: EngineConfig, on_stage: Callable[[str, float], None]) -> Engine:
    return build_sleeping_engine(path, config, on_stage, STEP_SECONDS)
