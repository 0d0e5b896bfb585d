"""Attention for CPUs, over torch's fused `scaled_dot_product_attention`.

Sequences that bring one query each are attended together, padded to the longest of their group; longer queries go
sequence by sequence. Query heads that share a KV head are laid out so that the KV head is never repeated in memory.
Padding repeats a sequence's own last slot: what other sequences left in the cache is never read, not even masked.

Shape suffixes: T tokens of the step, S sequences of a group, Q query heads, K KV heads, G query heads to a KV head,
D head dimension, L queries of one sequence, C gathered tokens.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from replicas.batch import ForwardBatch, KvLayer
from replicas.layers.attention import context_slots

# Groups double in length from here on, so padding at most doubles the work of a long sequence.
_SHORTEST_GROUP = 64


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    """Sequences of one query each. `rows_S` are their tokens in the step, `slots` the S * C gathered slots, sequence
    after sequence; mask_S11C is None without padding."""

    rows_S: torch.Tensor
    slots: torch.Tensor
    mask_S11C: torch.Tensor | None

    def attend(self, query_SQD: torch.Tensor, layer: KvLayer) -> torch.Tensor:
        num_sequences, num_heads, head_dim = query_SQD.shape
        num_kv_heads = layer.keys_NPKD.size(2)

        def gather(cache_NPKD: torch.Tensor) -> torch.Tensor:
            rows = cache_NPKD.flatten(0, 1).index_select(0, self.slots)
            return rows.view(num_sequences, -1, num_kv_heads, head_dim).transpose(1, 2)

        query_SKGD = query_SQD.reshape(num_sequences, num_kv_heads, -1, head_dim)
        output_SKGD = scaled_dot_product_attention(
            query_SKGD, gather(layer.keys_NPKD), gather(layer.values_NPKD), attn_mask=self.mask_S11C
        )
        return output_SKGD.reshape(num_sequences, num_heads, head_dim)


@dataclass(frozen=True, slots=True)
class _Prefill:
    """One sequence of several queries: tokens [start, stop) of the step. mask_LC is None where plain causality
    over square scores says it all."""

    start: int
    stop: int
    slots_C: torch.Tensor
    mask_LC: torch.Tensor | None

    def attend(self, query_TQD: torch.Tensor, layer: KvLayer) -> torch.Tensor:
        query_LQD = query_TQD[self.start : self.stop]
        num_queries, num_heads, head_dim = query_LQD.shape
        num_kv_heads = layer.keys_NPKD.size(2)
        group_size = num_heads // num_kv_heads

        def gather(cache_NPKD: torch.Tensor) -> torch.Tensor:
            rows_CKD = cache_NPKD.flatten(0, 1).index_select(0, self.slots_C)
            return rows_CKD.transpose(0, 1)[:, None].expand(-1, group_size, -1, -1)

        query_KGLD = query_LQD.view(num_queries, num_kv_heads, group_size, head_dim).permute(1, 2, 0, 3)
        output_KGLD = scaled_dot_product_attention(
            query_KGLD,
            gather(layer.keys_NPKD),
            gather(layer.values_NPKD),
            attn_mask=self.mask_LC,
            is_causal=self.mask_LC is None,
        )
        return output_KGLD.permute(2, 0, 1, 3).reshape(num_queries, num_heads, head_dim)


class CpuAttention:
    def __init__(self, batch: ForwardBatch, layer: KvLayer, window: int) -> None:
        groups: dict[int, list[int]] = defaultdict(list)
        self._prefills: list[_Prefill] = []
        for index, context_len in enumerate(batch.context_lens):
            if batch.query_starts[index + 1] - batch.query_starts[index] > 1:
                self._prefills.append(_plan_prefill(batch, layer, window, index))
                continue
            visible = min(context_len, window) if window else context_len
            groups[max(visible, _SHORTEST_GROUP).bit_length()].append(index)
        self._decodes = [_plan_decodes(batch, layer, window, indices) for indices in groups.values()]

    def __call__(self, query_TQD: torch.Tensor, layer: KvLayer) -> torch.Tensor:
        if not self._prefills and len(self._decodes) == 1:
            return self._decodes[0].attend(query_TQD, layer)
        output_TQD = torch.empty_like(query_TQD)
        for decode in self._decodes:
            output_TQD[decode.rows_S] = decode.attend(query_TQD[decode.rows_S], layer)
        for prefill in self._prefills:
            output_TQD[prefill.start : prefill.stop] = prefill.attend(query_TQD, layer)
        return output_TQD


def _plan_decodes(batch: ForwardBatch, layer: KvLayer, window: int, indices: list[int]) -> _DecodeGroup:
    block_size = layer.keys_NPKD.size(1)
    indices_S = torch.tensor(indices)
    stops_S1 = torch.tensor([batch.context_lens[index] for index in indices])[:, None]
    starts_S1 = (stops_S1 - window).clamp(min=0) if window else torch.zeros_like(stops_S1)
    lengths_S1 = stops_S1 - starts_S1
    positions_SC = starts_S1 + torch.arange(int(lengths_S1.max()))
    padding_SC = positions_SC >= stops_S1
    positions_SC = torch.minimum(positions_SC, stops_S1 - 1)
    blocks_SC = batch.block_tables_SB[indices_S].gather(1, positions_SC // block_size)
    mask_S11C = None
    if padding_SC.any():
        mask_SC = torch.zeros(padding_SC.shape, dtype=layer.keys_NPKD.dtype).masked_fill_(padding_SC, float("-inf"))
        mask_S11C = mask_SC[:, None, None]
    rows_S = torch.tensor([batch.query_starts[index] for index in indices])
    slots_SC = blocks_SC * block_size + positions_SC % block_size
    return _DecodeGroup(rows_S, slots_SC.flatten(), mask_S11C)


def _plan_prefill(batch: ForwardBatch, layer: KvLayer, window: int, index: int) -> _Prefill:
    start, stop = batch.query_starts[index], batch.query_starts[index + 1]
    context_len = batch.context_lens[index]
    first_query = context_len - (stop - start)
    first_key = max(0, first_query - window + 1) if window else 0
    slots_C = context_slots(batch.block_tables_SB[index], first_key, context_len, layer.keys_NPKD.size(1))
    if first_query == 0 and not 0 < window < context_len:
        return _Prefill(start, stop, slots_C, None)
    distance_LC = torch.arange(first_query, context_len)[:, None] - torch.arange(first_key, context_len)
    hidden_LC = distance_LC < 0
    if window:
        hidden_LC |= distance_LC >= window
    mask_LC = torch.zeros(hidden_LC.shape, dtype=layer.keys_NPKD.dtype).masked_fill_(hidden_LC, float("-inf"))
    return _Prefill(start, stop, slots_C, mask_LC)
