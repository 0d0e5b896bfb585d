"""Log probabilities in the model's own distribution: log_softmax in float32 of logits that nothing has changed yet.

Shape suffixes: R rows, A rows that ask, V vocabulary, K likeliest tokens, N pieces of P numbers each.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from parallel.layers import VocabParallelEmbedding
from replicas.messages import TokenLogprobs
from replicas.sampling.rows import SampleRow

PIECE_LOGITS = 1 << 22  # so many are held at a time for a prompt, 16 MB
_PIECE = 256


class RawLogprobs:
    """Taken of the rows that ask before their logits are changed, and looked up once the tokens are drawn."""

    def __init__(self, logits_RV: torch.Tensor, rows: Sequence[SampleRow]) -> None:
        self._counts = {index: row.params.logprobs for index, row in enumerate(rows) if row.params.logprobs is not None}
        if self._counts:
            self._logprobs_AV = logits_RV[list(self._counts)].log_softmax(dim=-1)

    def of(self, token_ids_R: torch.Tensor) -> dict[int, TokenLogprobs]:
        """By row, of those that ask."""
        if not self._counts:
            return {}
        asking = list(self._counts)
        return dict(
            zip(asking, lookup(self._logprobs_AV, token_ids_R[asking], list(self._counts.values())), strict=True)
        )


def score(
    head: VocabParallelEmbedding, hidden_RH: torch.Tensor, token_ids: Sequence[int], counts: Sequence[int]
) -> list[TokenLogprobs]:
    """The log probabilities of given tokens, each behind a hidden state, and of the `counts` likeliest in its place. Of
    all the logits only a piece exists at a time."""
    entries: list[TokenLogprobs] = []
    rows = max(1, PIECE_LOGITS // head.vocab_size)
    for first in range(0, len(token_ids), rows):
        piece = slice(first, first + rows)
        logprobs_RV = head.logits(hidden_RH[piece]).log_softmax(dim=-1)
        token_ids_R = torch.tensor(token_ids[piece], device=logprobs_RV.device)
        entries += lookup(logprobs_RV, token_ids_R, counts[piece])
    return entries


def lookup(logprobs_RV: torch.Tensor, token_ids_R: torch.Tensor, counts: Sequence[int]) -> list[TokenLogprobs]:
    """The entry of each row's token, with as many of the likeliest as `counts` says."""
    own = logprobs_RV.gather(1, token_ids_R[:, None])[:, 0].tolist()
    if not (most := min(max(counts), logprobs_RV.size(1))):
        return [TokenLogprobs(logprob) for logprob in own]
    values_RK, ids_RK = likeliest(logprobs_RV, most)
    tops = zip(ids_RK.tolist(), values_RK.tolist(), strict=True)
    return [
        TokenLogprobs(logprob, tuple(zip(ids[:count], values[:count], strict=True)))
        for logprob, count, (ids, values) in zip(own, counts, tops, strict=True)
    ]


def likeliest(x_RV: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and indices of each row's `count` largest numbers, in falling order. Whatever lies in a piece that has
    none of the largest maxima cannot be among them, which on CPUs spares most of the search."""
    num_pieces = x_RV.size(1) // _PIECE
    if x_RV.device.type != "cpu" or x_RV.size(1) % _PIECE or num_pieces <= count:
        return torch.topk(x_RV, count, dim=-1)
    pieces_RNP = x_RV.unflatten(1, (num_pieces, _PIECE))
    best_RK = pieces_RNP.amax(dim=-1).topk(count, dim=-1).indices
    rows_R1 = torch.arange(len(x_RV))[:, None]
    values_RK, places_RK = pieces_RNP[rows_R1, best_RK].flatten(1).topk(count, dim=-1)
    return values_RK, best_RK.gather(1, places_RK // _PIECE) * _PIECE + places_RK % _PIECE
