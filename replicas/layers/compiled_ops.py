"""The compiled kernels for CPUs between a model's matrix products, and which models they fit.

Shape suffixes: T tokens, C columns of packed queries, keys and values, Q query heads, D head dimension, F intermediate.
"""

from __future__ import annotations

from functools import partial

import torch

from parallel.mesh import Mesh
from replicas.batch import ForwardBatch, KvLayer
from replicas.config import ModelConfig
from replicas.kernels.cpu import functions
from replicas.layers.attention import Attend
from replicas.layers.ops import CosSin

LANES = 16
HEAD_DIMS = (64, 128)
DTYPES = (torch.float32, torch.bfloat16)


def kernels_fit(config: ModelConfig, mesh: Mesh, dtype: torch.dtype) -> bool:
    """Whether the kernels know this type, and all rows they will meet are whole vectors."""
    rows_fit = config.hidden_size % LANES == 0 and config.intermediate_size // mesh.tensor % LANES == 0
    return rows_fit and config.head_dim in HEAD_DIMS and dtype in DTYPES


class CompiledOps:
    """`Ops` for models that `kernels_fit`."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return functions.rms_norm(x.contiguous(), weight, eps)

    def silu_mul(self, gate_up_TF: torch.Tensor) -> torch.Tensor:
        return functions.silu_mul(gate_up_TF)

    def rope_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return torch.float32

    def rotate_and_write(
        self, qkv_TC: torch.Tensor, cos_sin: CosSin, slots_T: torch.Tensor, layer: KvLayer, num_heads: int
    ) -> torch.Tensor:
        functions.rotate_and_write(qkv_TC, cos_sin, slots_T, layer, num_heads)
        head_dim = layer.keys_NPKD.size(3)
        return qkv_TC.view(qkv_TC.size(0), -1, head_dim)[:, :num_heads]

    def plan_attention(self, batch: ForwardBatch, layer: KvLayer, window: int) -> Attend:
        return partial(functions.attention, functions.AttentionStep.of(batch, window))
