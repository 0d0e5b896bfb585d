"""What a replica asks of Ray: logical CPUs and GPUs, as a function of its configuration."""

from __future__ import annotations

from replicas.config import EngineConfig


def on_gpu(config: EngineConfig) -> bool:
    return config.device.startswith("cuda")


def cpus_per_rank(config: EngineConfig) -> int:
    return max(1, config.threads)


def num_cpus(config: EngineConfig) -> int:
    """Of one replica, all its ranks together."""
    return cpus_per_rank(config) * config.num_ranks


def stage_bundles(config: EngineConfig) -> list[dict[str, float]]:
    """The placement group of a replica: a bundle for each pipeline stage, with room for its tensor-parallel ranks."""
    bundle = {"CPU": float(cpus_per_rank(config) * config.tensor_parallel)}
    if on_gpu(config):
        bundle["GPU"] = float(config.tensor_parallel)
    return [bundle] * config.pipeline_parallel
