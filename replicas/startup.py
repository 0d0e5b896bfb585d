"""What every rank does to start: load its part of the model, allocate its KV cache, and say how long that took."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from parallel.groups import RankGroup
from replicas.config import EngineConfig
from replicas.layers.attention import allocate_kv_layers
from replicas.loading.checkpoint import Checkpoint, load_model
from replicas.loading.precision import resolve_precision
from replicas.ranks.links import StageLinks
from replicas.runner import ModelRunner

OnStage = Callable[[str, float], None]


def unheard(name: str, seconds: float) -> None:
    """An `OnStage` for those who do not want to know."""


def build_runner(
    checkpoint: Checkpoint, config: EngineConfig, group: RankGroup, num_blocks: int, on_stage: OnStage = unheard
) -> ModelRunner:
    """One rank's part of the model, with its weights and its KV cache."""
    model_config, mesh, device = checkpoint.config, group.mesh, group.device
    precision = resolve_precision(config, checkpoint)
    dtype = precision.dtype
    with stage("load the weights", on_stage):
        model = load_model(checkpoint, mesh, dtype, device, precision.compute(model_config, mesh))
    with stage("allocate the KV cache", on_stage):
        kv_layers = allocate_kv_layers(model_config, mesh, num_blocks, config.block_size, dtype, device)
    links = StageLinks.of(group, model_config.hidden_size, dtype) if mesh.pipeline > 1 else None
    return ModelRunner(model, kv_layers, config.block_size, config.max_running, model_config.eos_token_ids, links)


@contextmanager
def stage(name: str, on_stage: OnStage) -> Iterator[None]:
    """Tell `on_stage` a stage's name and seconds when it is done."""
    started = time.monotonic()
    yield
    on_stage(name, time.monotonic() - started)
