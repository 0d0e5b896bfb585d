"""The two kinds of models that can make vectors: encoders, and decoders whose tokens see only what stands before them.

Shape suffixes: T tokens of all sequences, S sequences, B blocks of the longest one, H hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch

from parallel.mesh import Mesh
from replicas.batch import ForwardBatch
from replicas.embedding.model import TokenIds
from replicas.layers.attention import allocate_kv_layers
from replicas.models.bert import Bert
from replicas.models.llama import CausalLM


class BertEncoder:
    def __init__(self, model: Bert, device: torch.device) -> None:
        self._model = model
        self._device = device

    def __call__(self, sequences: Sequence[TokenIds]) -> torch.Tensor:
        token_ids_T = torch.tensor([token_id for sequence in sequences for token_id in sequence], device=self._device)
        hidden_TH: torch.Tensor = self._model(token_ids_T, list(map(len, sequences)))
        return hidden_TH


class DecoderEncoder:
    """A decoder without its head. Its KV cache is scratch paper: each call begins on an empty one."""

    def __init__(
        self, model: CausalLM, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._model = model
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._device = device
        self._kv_layers = allocate_kv_layers(model.config, Mesh(), num_blocks, block_size, dtype, device)

    def __call__(self, sequences: Sequence[TokenIds]) -> torch.Tensor:
        hidden_TH: torch.Tensor = self._model(self._batch(sequences), self._kv_layers)
        return hidden_TH

    def _batch(self, sequences: Sequence[TokenIds]) -> ForwardBatch:
        """Every sequence whole, on blocks that follow each other."""
        size, lengths = self._block_size, list(map(len, sequences))
        counts = [-(-length // size) for length in lengths]
        firsts = [0, *accumulate(counts)]
        assert firsts[-1] <= self._num_blocks, "the KV cache is too small for these sequences"
        starts = [0, *accumulate(lengths)]
        positions_T = torch.cat([torch.arange(length) for length in lengths])
        slots_T = torch.cat(
            [torch.arange(length) + first * size for first, length in zip(firsts, lengths, strict=False)]
        )
        tables_SB = torch.stack([torch.arange(max(counts)) + first for first in firsts[:-1]]).clamp_(max=firsts[-1] - 1)
        return ForwardBatch(
            token_ids_T=self._to_device([token_id for sequence in sequences for token_id in sequence]),
            positions_T=positions_T.to(self._device),
            slots_T=slots_T.to(self._device),
            block_tables_SB=tables_SB.to(self._device),
            logit_rows_R=self._to_device([stop - 1 for stop in starts[1:]]),
            query_starts=starts,
            context_lens=lengths,
            rope_lengths_T=self._to_device([length for length in lengths for _ in range(length)]),
        )

    def _to_device(self, values: list[int]) -> torch.Tensor:
        return torch.tensor(values, device=self._device)
