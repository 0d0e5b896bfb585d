"""What each speed mechanism is worth: the same engine with one of them switched off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from replicas.config import EngineConfig


@dataclass(frozen=True, slots=True)
class Ablation:
    """`without` takes a configuration as it was asked for to the same one without the mechanism. `used` tells from an
    engine's own configuration, in which nothing is `auto` any more, whether it has the mechanism at all."""

    name: str
    used: Callable[[EngineConfig], bool]
    without: Callable[[EngineConfig], EngineConfig]


SMALL_CHUNK = 128

ABLATIONS = (
    Ablation(
        "quantization",
        lambda own: own.quantization != "none",
        lambda asked: replace(asked, quantization="none"),
    ),
    Ablation(
        "16-bit weights",
        lambda own: own.dtype != "float32" and own.quantization == "none",
        lambda asked: replace(asked, dtype="float32"),
    ),
    Ablation(
        "compiled kernels",
        lambda own: own.kernels == "compiled",
        lambda asked: replace(asked, kernels="torch", quantization="none"),
    ),
    Ablation(
        "recorded decodes",
        lambda own: own.kernels == "compiled" and own.record_decodes,
        lambda asked: replace(asked, record_decodes=False),
    ),
    Ablation(
        "several threads",
        lambda own: own.threads > 1,
        lambda asked: replace(asked, threads=1),
    ),
    Ablation(
        "batching",
        lambda own: own.max_running > 1,
        lambda asked: replace(asked, max_running=1),
    ),
    Ablation(
        "prefix caching",
        lambda own: own.prefix_caching,
        lambda asked: replace(asked, prefix_caching=False),
    ),
    Ablation(
        "cutting prompts",
        lambda own: True,
        lambda asked: replace(asked, max_batched_tokens=16 * asked.max_batched_tokens),
    ),
    Ablation(
        "large steps",
        lambda own: max(SMALL_CHUNK, own.max_running) < own.max_batched_tokens,
        lambda asked: replace(asked, max_batched_tokens=max(SMALL_CHUNK, asked.max_running)),
    ),
)


def applicable(asked: EngineConfig, own: EngineConfig) -> list[tuple[str, EngineConfig]]:
    """The mechanisms that an engine uses, with the configuration without each."""
    return [(ablation.name, ablation.without(asked)) for ablation in ABLATIONS if ablation.used(own)]
