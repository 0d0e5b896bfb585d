"""Attention over the paged KV cache: one interface, several backends.

A step writes its keys and values into the cache by slot and then attends. A backend plans once a step what does
not depend on the layer (which slots to gather, what to mask) and every layer of one window shares that plan.
Query i sees key j when j <= i and, with a window, i - j < window.

Shape suffixes: T tokens of the step, Q query heads, K KV heads, D head dimension, N blocks, P tokens in a block.
"""

from __future__ import annotations

from typing import Protocol

import torch

from parallel.mesh import Mesh
from parallel.sharding import kv_head_shard
from replicas.batch import ForwardBatch, KvLayer
from replicas.config import ModelConfig
from replicas.layers.huge_pages import prefer_huge_pages
from replicas.models.layout import stage_layers


class Attend(Protocol):
    """One step's attention, as a layer calls it: query_TQD -> output_TQD."""

    def __call__(self, query_TQD: torch.Tensor, layer: KvLayer) -> torch.Tensor: ...


class AttentionBackend(Protocol):
    """Plans a step for the layers with this window (0: none). `layer` is any one of them: it tells block size,
    dtype and device."""

    def __call__(self, batch: ForwardBatch, layer: KvLayer, window: int) -> Attend: ...


def attention_backend(device: torch.device) -> AttentionBackend:
    """The fastest backend for the device."""
    from replicas.layers.cpu_attention import CpuAttention
    from replicas.layers.reference_attention import ReferenceAttention

    return CpuAttention if device.type == "cpu" else ReferenceAttention


def write_kv(layer: KvLayer, slots_T: torch.Tensor, key_TKD: torch.Tensor, value_TKD: torch.Tensor) -> None:
    layer.keys_NPKD.flatten(0, 1).index_copy_(0, slots_T, key_TKD)
    layer.values_NPKD.flatten(0, 1).index_copy_(0, slots_T, value_TKD)


def context_slots(block_table_B: torch.Tensor, start: int, stop: int, block_size: int) -> torch.Tensor:
    """The slots of one sequence's positions [start, stop)."""
    positions = torch.arange(start, stop, device=block_table_B.device)
    return block_table_B[positions // block_size] * block_size + positions % block_size


def allocate_kv_layers(
    config: ModelConfig, mesh: Mesh, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
) -> list[KvLayer]:
    """This rank's part of the KV cache. Its content is undefined, so memory that is never used is never touched."""
    shape = (num_blocks, block_size, _local_kv_heads(config, mesh), config.head_dim)

    def empty() -> torch.Tensor:
        cache = torch.empty(shape, dtype=dtype, device=device)
        prefer_huge_pages(cache)
        return cache

    return [KvLayer(empty(), empty()) for _ in stage_layers(config, mesh)]


def kv_bytes_per_block(config: ModelConfig, mesh: Mesh, block_size: int, dtype: torch.dtype) -> int:
    """Bytes that one block takes on this rank, over all its layers, keys and values."""
    elements = block_size * _local_kv_heads(config, mesh) * config.head_dim
    return 2 * len(stage_layers(config, mesh)) * elements * dtype.itemsize


def _local_kv_heads(config: ModelConfig, mesh: Mesh) -> int:
    heads = kv_head_shard(config.num_kv_heads, mesh)
    return heads.stop - heads.start
