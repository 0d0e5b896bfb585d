"""Sampling when the vocabulary is divided over ranks: every rank of the group gets the same tokens.

Shape suffixes: R rows to sample (G of them greedy), V columns of the vocabulary on this rank, S ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from parallel.collectives import all_gather
from parallel.layers import VocabParallelEmbedding
from replicas.messages import TokenLogprobs
from replicas.sampling.draw import argmax
from replicas.sampling.logprobs import RawLogprobs
from replicas.sampling.processors import exclude
from replicas.sampling.rows import SampleRow
from replicas.sampling.sampler import sample

PAIR_BYTES = 16


@dataclass(frozen=True, slots=True)
class Drawn:
    """A token for each row, and by row the log probabilities that were asked for."""

    token_ids: list[int]
    logprobs: Mapping[int, TokenLogprobs] = field(default_factory=dict)


def sample_sharded(head: VocabParallelEmbedding, hidden_RH: torch.Tensor, rows: Sequence[SampleRow]) -> Drawn:
    """What `sample` finds in the whole logits."""
    logits_RV = head.local_logits(hidden_RH)
    if head.mesh.tensor == 1:
        return _draw(head.whole_logits(logits_RV), rows)
    by_pairs = [index for index, row in enumerate(rows) if _pairs_suffice(row, head, logits_RV)]
    whole = [index for index in range(len(rows)) if index not in set(by_pairs)]
    token_ids, logprobs = [-1] * len(rows), {}
    if by_pairs:
        token_ids_G = _greedy(head, logits_RV[by_pairs].float(), [rows[index] for index in by_pairs])
        for index, token_id in zip(by_pairs, token_ids_G.tolist(), strict=True):
            token_ids[index] = token_id
    if whole:
        drawn = _draw(head.whole_logits(logits_RV[whole]), [rows[index] for index in whole])
        for index, token_id in zip(whole, drawn.token_ids, strict=True):
            token_ids[index] = token_id
        logprobs = {whole[place]: entry for place, entry in drawn.logprobs.items()}
    return Drawn(token_ids, logprobs)


def _draw(logits_RV: torch.Tensor, rows: Sequence[SampleRow]) -> Drawn:
    raw = RawLogprobs(logits_RV, rows)
    token_ids_R = sample(logits_RV, rows)
    return Drawn(token_ids_R.tolist(), raw.of(token_ids_R))


def _pairs_suffice(row: SampleRow, head: VocabParallelEmbedding, logits_RV: torch.Tensor) -> bool:
    """Whether each rank sends (largest logit, its index), 16 bytes a row, instead of its columns, which take
    vocabulary / ranks * 2 or 4 bytes. That is enough for a greedy token of logits that nothing but bans has shaped."""
    if row.needs_whole_logits or len(row.banned_ids) >= head.vocab_size:
        return False
    return logits_RV.size(1) * logits_RV.element_size() > PAIR_BYTES


def _greedy(head: VocabParallelEmbedding, logits_GV: torch.Tensor, rows: Sequence[SampleRow]) -> torch.Tensor:
    """The largest logit's index over all ranks, the lowest on a tie. Float64 holds logits and indices exactly."""
    if banned := [(index, _on_shard(row.banned_ids, head)) for index, row in enumerate(rows) if row.banned_ids]:
        exclude(logits_GV, banned)
    local_G = argmax(logits_GV)
    best_G = logits_GV.gather(1, local_G[:, None])[:, 0]
    pairs = all_gather(torch.stack((best_G.double(), (local_G + head.shard.start).double())), head.mesh)
    best_SG, token_ids_SG = torch.stack(pairs, dim=1)
    best_rank_1G = best_SG.argmax(dim=0, keepdim=True)
    token_ids_G: torch.Tensor = token_ids_SG.gather(0, best_rank_1G)[0].long()
    return token_ids_G


def _on_shard(token_ids: Sequence[int], head: VocabParallelEmbedding) -> list[int]:
    """Those of the tokens that this rank holds, by their local columns."""
    shard = head.shard
    return [token_id - shard.start for token_id in token_ids if shard.start <= token_id < shard.stop]
