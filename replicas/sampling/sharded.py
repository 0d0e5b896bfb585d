"""Sampling when the vocabulary is divided over ranks: every rank of the group gets the same tokens.

Shape suffixes: R rows to sample (G of them greedy), V columns of the vocabulary on this rank, S ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from parallel.collectives import all_gather
from parallel.layers import VocabParallelEmbedding
from replicas.sampling.sampler import SampleRow, sample

PAIR_BYTES = 16


def sample_sharded(head: VocabParallelEmbedding, hidden_RH: torch.Tensor, rows: Sequence[SampleRow]) -> torch.Tensor:
    """Token ids, int64 of shape (R,), equal to those that `sample` finds in the whole logits."""
    logits_RV = head.local_logits(hidden_RH)
    if head.mesh.tensor == 1:
        return sample(head.whole_logits(logits_RV), rows)
    by_pairs = [index for index, row in enumerate(rows) if _pairs_suffice(row, logits_RV)]
    whole = [index for index in range(len(rows)) if index not in set(by_pairs)]
    token_ids_R = torch.empty(len(rows), dtype=torch.int64, device=logits_RV.device)
    if by_pairs:
        token_ids_R[by_pairs] = _greedy(head, logits_RV[by_pairs], [rows[index] for index in by_pairs])
    if whole:
        token_ids_R[whole] = sample(head.whole_logits(logits_RV[whole]), [rows[index] for index in whole])
    return token_ids_R


def _pairs_suffice(row: SampleRow, logits_RV: torch.Tensor) -> bool:
    """Whether each rank sends (largest logit, its index), 16 bytes a row, instead of its columns, which take
    vocabulary / ranks * 2 or 4 bytes. That is enough for a greedy token; a random one's filters need the whole row."""
    return row.params.greedy and logits_RV.size(1) * logits_RV.element_size() > PAIR_BYTES


def _greedy(head: VocabParallelEmbedding, logits_GV: torch.Tensor, rows: Sequence[SampleRow]) -> torch.Tensor:
    """The largest logit's index over all ranks, the lowest on a tie. Float64 holds logits and indices exactly."""
    logits_GV = logits_GV.float()
    local_G = sample(logits_GV, [_on_shard(row, head) for row in rows])
    best_G = logits_GV.gather(1, local_G[:, None])[:, 0]
    pairs = all_gather(torch.stack((best_G.double(), (local_G + head.shard.start).double())), head.mesh)
    best_SG, token_ids_SG = torch.stack(pairs, dim=1)
    best_rank_1G = best_SG.argmax(dim=0, keepdim=True)
    token_ids_G: torch.Tensor = token_ids_SG.gather(0, best_rank_1G)[0].long()
    return token_ids_G


def _on_shard(row: SampleRow, head: VocabParallelEmbedding) -> SampleRow:
    """The row with those of its banned tokens that this rank holds, by their local columns."""
    shard = head.shard
    banned = tuple(token - shard.start for token in row.banned_ids if shard.start <= token < shard.stop)
    return replace(row, banned_ids=banned)
