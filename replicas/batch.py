"""The tensors of one step, as models and attention backends see them.

Shape suffixes: T tokens of the step, S sequences, B blocks of the longest sequence, R rows to sample,
N blocks of the pool, K KV heads, P tokens in a block, D head dimension.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """Tokens of all scheduled sequences, concatenated; sequence s owns rows query_starts[s]:query_starts[s + 1].

    `context_lens[s]` counts the tokens of sequence s after this step (cached ones and those of this step);
    its queries are the last of them. `slots_T[t]` = block id * block size + offset, where token t's keys and
    values are written. The Python lists repeat the index tensors so that CPU code need not read them back.
    `rope_lengths_T` serves dynamic rope scaling only: max(prompt length, position + 1) of each token.
    """

    token_ids_T: torch.Tensor
    positions_T: torch.Tensor
    slots_T: torch.Tensor
    block_tables_SB: torch.Tensor
    logit_rows_R: torch.Tensor
    query_starts: list[int]
    context_lens: list[int]
    rope_lengths_T: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class KvLayer:
    """One layer's part of the pool: keys_NPKD and values_NPKD, contiguous."""

    keys_NPKD: torch.Tensor
    values_NPKD: torch.Tensor
