"""Attention written to be obviously right: sequence by sequence, gather, score, mask, softmax, in float32.

Every other backend is tested against this one. Runs on any device.

Shape suffixes: T tokens of the step, Q query heads, K KV heads, G query heads to a KV head, D head dimension,
L queries of one sequence, C tokens of its context.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch

from replicas.batch import ForwardBatch, KvLayer
from replicas.layers.attention import context_slots


@dataclass(frozen=True, slots=True)
class ReferenceAttention:
    batch: ForwardBatch
    layer: KvLayer
    window: int

    def __call__(self, query_TQD: torch.Tensor, layer: KvLayer) -> torch.Tensor:
        starts = self.batch.query_starts
        outputs = [
            self._attend_sequence(query_TQD[start:stop], layer, index)
            for index, (start, stop) in enumerate(pairwise(starts))
        ]
        return torch.cat(outputs).to(query_TQD.dtype)

    def _attend_sequence(self, query_LQD: torch.Tensor, layer: KvLayer, index: int) -> torch.Tensor:
        num_queries, num_heads, head_dim = query_LQD.shape
        context_len = self.batch.context_lens[index]
        block_size, num_kv_heads = layer.keys_NPKD.shape[1:3]
        slots_C = context_slots(self.batch.block_tables_SB[index], 0, context_len, block_size)
        keys_CQD = _for_query_heads(layer.keys_NPKD, slots_C, num_heads // num_kv_heads)
        values_CQD = _for_query_heads(layer.values_NPKD, slots_C, num_heads // num_kv_heads)
        scores_QLC = torch.einsum("lqd,cqd->qlc", query_LQD.float(), keys_CQD) * head_dim**-0.5

        query_positions_L1 = torch.arange(context_len - num_queries, context_len, device=slots_C.device)[:, None]
        distance_LC = query_positions_L1 - torch.arange(context_len, device=slots_C.device)
        hidden_LC = distance_LC < 0
        if self.window:
            hidden_LC |= distance_LC >= self.window
        weights_QLC = scores_QLC.masked_fill(hidden_LC, float("-inf")).softmax(dim=-1)
        return torch.einsum("qlc,cqd->lqd", weights_QLC, values_CQD)


def _for_query_heads(cache_NPKD: torch.Tensor, slots_C: torch.Tensor, group_size: int) -> torch.Tensor:
    return cache_NPKD.flatten(0, 1)[slots_C].float().repeat_interleave(group_size, dim=1)
