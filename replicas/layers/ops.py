"""What a model computes between its matrix products, and who computes it: torch, or the compiled kernels for CPUs.

Shape suffixes: T tokens, H hidden, C columns of packed queries, keys and values, Q query heads, D head dimension,
F intermediate.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn import functional as F

from replicas.batch import ForwardBatch, KvLayer
from replicas.layers.attention import Attend, attention_backend, write_kv
from replicas.layers.rope import apply_rope

CosSin = tuple[torch.Tensor, torch.Tensor]


class Ops(Protocol):
    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """x / rms(x) * weight over the last dimension."""

    def silu_mul(self, gate_up_TF: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up, which lie side by side."""

    def rope_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """In which type `rotate_and_write` wants cos and sin, for activations of `dtype`."""

    def rotate_and_write(
        self, qkv_TC: torch.Tensor, cos_sin: CosSin, slots_T: torch.Tensor, layer: KvLayer, num_heads: int
    ) -> torch.Tensor:
        """Write rotated keys, and values, to the cache; query_TQD, rotated. May overwrite its input."""

    def plan_attention(self, batch: ForwardBatch, layer: KvLayer, window: int) -> Attend:
        """See `AttentionBackend`."""


class TorchOps:
    """Runs everywhere."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        x_float = x.float()
        scale = torch.rsqrt(x_float.square().mean(-1, keepdim=True) + eps)
        return weight * (x_float * scale).to(x.dtype)

    def silu_mul(self, gate_up_TF: torch.Tensor) -> torch.Tensor:
        gate_TF, up_TF = gate_up_TF.chunk(2, dim=-1)
        return F.silu(gate_TF) * up_TF

    def rope_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return dtype

    def rotate_and_write(
        self, qkv_TC: torch.Tensor, cos_sin: CosSin, slots_T: torch.Tensor, layer: KvLayer, num_heads: int
    ) -> torch.Tensor:
        num_kv_heads, head_dim = layer.keys_NPKD.shape[2:]
        qkv_THD = qkv_TC.view(qkv_TC.size(0), -1, head_dim)
        rotated_THD = apply_rope(qkv_THD[:, : num_heads + num_kv_heads], *cos_sin)
        write_kv(layer, slots_T, rotated_THD[:, num_heads:], qkv_THD[:, num_heads + num_kv_heads :])
        return rotated_THD[:, :num_heads]

    def plan_attention(self, batch: ForwardBatch, layer: KvLayer, window: int) -> Attend:
        return attention_backend(layer.keys_NPKD.device)(batch, layer, window)
