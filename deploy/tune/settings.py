"""The settings that are tuned: how many tokens a step may compute, how many requests run at once, and how far prompts
are cut so that those who are decoding do not wait."""

from __future__ import annotations

from dataclasses import dataclass, replace

from deploy.tune.search import Point, Space
from replicas.config import EngineConfig

TOKENS = (128, 256, 512, 1024, 2048, 4096, 8192)
RUNNING = (2, 4, 8, 16, 32, 64, 128, 256)
SHARES = (None, 1.0, 0.7, 0.5, 0.35, 0.25)


@dataclass(frozen=True, slots=True)
class Setting:
    """`chunk_share` is the part of the ITL objective that a step may take while somebody is decoding: prompts are cut
    accordingly. None: only `max_batched_tokens` cuts them."""

    max_batched_tokens: int
    max_running: int
    chunk_share: float | None

    def applied(self, config: EngineConfig, itl_objective: float) -> EngineConfig:
        chunk_seconds = None if self.chunk_share is None else self.chunk_share * itl_objective
        return replace(
            config,
            max_batched_tokens=self.max_batched_tokens,
            max_running=self.max_running,
            itl_objective=chunk_seconds,
        )

    def __str__(self) -> str:
        chunks = "whole prompts" if self.chunk_share is None else f"chunks of {self.chunk_share:g} × ITL"
        return f"{self.max_batched_tokens} tokens a step, {self.max_running} running, {chunks}"


def setting(point: Point) -> Setting:
    tokens, running, share = point
    return Setting(TOKENS[tokens], RUNNING[running], SHARES[share])


def is_valid(point: Point) -> bool:
    """Every running request needs room for one token in a step."""
    return setting(point).max_running <= setting(point).max_batched_tokens


SPACE = Space((len(TOKENS), len(RUNNING), len(SHARES)), is_valid)
_DEFAULTS = EngineConfig()
DEFAULT = (TOKENS.index(_DEFAULTS.max_batched_tokens), RUNNING.index(_DEFAULTS.max_running), SHARES.index(1.0))
"""What `mobula serve` does by itself, once it is told the objectives."""
