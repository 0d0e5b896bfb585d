"""What a replica asks of Ray: logical CPUs and GPUs, as a function of its configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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


def check_fits(nodes: Sequence[Mapping[str, float]], model_id: str, config: EngineConfig, num_replicas: int) -> None:
    """Raise ValueError with one sentence unless nodes with these resources can hold the replicas, a stage on one node
    each (first fit, largest node first). Otherwise Ray would wait for ever for a node that never comes."""
    free = [dict(node) for node in nodes]
    for _ in range(num_replicas):
        for bundle in stage_bundles(config):
            node = max(free, key=lambda node: min(node.get(name, 0.0) - need for name, need in bundle.items()))
            for name, need in bundle.items():
                if node.get(name, 0.0) < need:
                    raise ValueError(_too_few(name, need, nodes, model_id, config, num_replicas))
            for name, need in bundle.items():
                node[name] -= need


def _too_few(
    name: str, need: float, nodes: Sequence[Mapping[str, float]], model_id: str, config: EngineConfig, replicas: int
) -> str:
    largest = max(node.get(name, 0.0) for node in nodes)
    if largest < need:
        return (
            f"the model {model_id} needs {need:.0f} {name}s on one node for tensor {config.tensor_parallel}, but the "
            f"largest node has {largest:.0f}"
        )
    total, wanted = sum(node.get(name, 0.0) for node in nodes), need * config.pipeline_parallel * replicas
    return (
        f"the model {model_id} needs {wanted:.0f} {name}s for {replicas} replicas of tensor {config.tensor_parallel} × "
        f"pipeline {config.pipeline_parallel}, a stage on one node, but there are {total:.0f} on {len(nodes)} nodes"
    )
