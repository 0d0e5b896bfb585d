"""A layout divides one replica over GPUs; which layouts a model's shape allows, and what its stages hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from parallel.mesh import Mesh
from parallel.sharding import kv_head_shard
from replicas.config import ModelConfig
from replicas.models.layout import stage_layers, tensor_sizes


@dataclass(frozen=True, slots=True)
class Layout:
    """`tensor` GPUs share every layer, `pipeline` stages share the stack."""

    tensor: int
    pipeline: int

    @property
    def gpus(self) -> int:
        return self.tensor * self.pipeline

    def __str__(self) -> str:
        return f"tensor {self.tensor} × pipeline {self.pipeline}"


@dataclass(frozen=True, slots=True)
class Stage:
    """What one pipeline stage holds: `layers` layers, the embedding if it is the first, the head if the last."""

    layers: int
    first: bool
    last: bool


def layouts(config: ModelConfig, gpus: int, gpus_per_node: int) -> Iterator[Layout]:
    """All that the model allows on that many GPUs. A tensor-parallel group stays within a node."""
    for tensor in tensor_sizes(config):
        if tensor <= min(gpus, gpus_per_node):
            for pipeline in range(1, min(gpus // tensor, config.num_layers) + 1):
                yield Layout(tensor, pipeline)


def stages(config: ModelConfig, pipeline: int) -> list[Stage]:
    meshes = [Mesh(pipeline=pipeline, rank=rank) for rank in range(pipeline)]
    return [Stage(len(stage_layers(config, mesh)), mesh.is_first_stage, mesh.is_last_stage) for mesh in meshes]


def local_kv_heads(config: ModelConfig, tensor: int) -> int:
    """KV heads on each rank; with more ranks than heads, ranks hold copies."""
    heads = kv_head_shard(config.num_kv_heads, Mesh(tensor=tensor))
    return heads.stop - heads.start
