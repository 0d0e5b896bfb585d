"""What each speed mechanism is worth: the same engine with one of them switched off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from replicas.config import EngineConfig


@dataclass(frozen=True, slots=True)
class Ablation:
    """`without` takes a configuration to the same one without the mechanism."""

    name: str
    without: Callable[[EngineConfig], EngineConfig]


ABLATIONS = (
    Ablation("prefix caching", lambda config: replace(config, prefix_caching=False)),
    Ablation("continuous batching", lambda config: replace(config, max_running=1)),
    Ablation("small chunks", lambda config: replace(config, max_batched_tokens=16 * config.max_batched_tokens)),
    Ablation("large chunks", lambda config: replace(config, max_batched_tokens=max(128, config.max_running))),
    Ablation("several threads", lambda config: replace(config, threads=1)),
    Ablation("narrow weights", lambda config: replace(config, dtype="float32")),
)


def applicable(config: EngineConfig) -> list[tuple[Ablation, EngineConfig]]:
    """The mechanisms that this configuration uses, with what becomes of it without each."""
    changed = [(ablation, ablation.without(config)) for ablation in ABLATIONS]
    return [(ablation, without) for ablation, without in changed if without != config]
