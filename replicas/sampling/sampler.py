"""Tokens from logits: processors, then temperature, then top-k, top-p and min-p, then counter-based Gumbel noise.

The filters follow the order of transformers' logits processors; a tie at a filter's threshold is kept.

Shape suffixes: R rows to sample (G of them greedy, S of them random), V vocabulary, C tokens that may be needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from replicas.sampling.draw import argmax, draw
from replicas.sampling.noise import row_keys
from replicas.sampling.params import SamplingParams
from replicas.sampling.processors import process_logits
from replicas.sampling.rows import SampleRow


def sample(logits_RV: torch.Tensor, rows: Sequence[SampleRow]) -> torch.Tensor:
    """Token ids, int64 of shape (R,). `logits_RV` is float32 and may be overwritten."""
    process_logits(logits_RV, rows)
    token_ids_R = argmax(logits_RV)
    random = [index for index, row in enumerate(rows) if not row.params.greedy]
    if random:
        token_ids_R[random] = _sample_random(logits_RV[random], [rows[index] for index in random])
    return token_ids_R


def _sample_random(logits_SV: torch.Tensor, rows: Sequence[SampleRow]) -> torch.Tensor:
    device = logits_SV.device
    temperatures_S = torch.tensor([row.params.temperature for row in rows], device=device)
    logits_SV = filter_logits(logits_SV / temperatures_S[:, None], [row.params for row in rows])

    def column(values: Iterable[int]) -> torch.Tensor:
        return torch.tensor(list(values), dtype=torch.int64, device=device)

    keys_S = row_keys(
        column(row.params.seed for row in rows),
        column(row.params.choice for row in rows),
        column(row.position for row in rows),
    )
    return draw(logits_SV, keys_S)


def filter_logits(logits_SV: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """Minus infinity for every token that top-k, top-p or min-p excludes; the likeliest always stays."""
    top_k = [index for index, row in enumerate(params) if 0 < row.top_k < logits_SV.shape[1]]
    if top_k:
        counts_S = torch.tensor([params[index].top_k for index in top_k], device=logits_SV.device)
        logits_SV[top_k] = _keep_top_k(logits_SV[top_k], counts_S)
    top_p = [index for index, row in enumerate(params) if row.top_p < 1.0]
    if top_p:
        masses_S = torch.tensor([params[index].top_p for index in top_p], device=logits_SV.device)
        logits_SV[top_p] = _keep_top_p(logits_SV[top_p], masses_S)
    min_p = [index for index, row in enumerate(params) if row.min_p > 0.0]
    if min_p:
        shares_S = torch.tensor([params[index].min_p for index in min_p], device=logits_SV.device)
        floors_S = logits_SV[min_p].amax(dim=-1) + shares_S.log()
        logits_SV[min_p] = _keep_at_least(logits_SV[min_p], floors_S)
    return logits_SV


def _keep_top_k(logits_SV: torch.Tensor, counts_S: torch.Tensor) -> torch.Tensor:
    largest_SK = logits_SV.topk(int(counts_S.max()), dim=-1).values
    return _keep_at_least(logits_SV, largest_SK.gather(1, counts_S[:, None] - 1)[:, 0])


def _keep_top_p(logits_SV: torch.Tensor, masses_S: torch.Tensor) -> torch.Tensor:
    """The smallest set of likeliest tokens whose probabilities reach the mass (Holtzman et al., ICLR 2020)."""
    log_totals_S = logits_SV.logsumexp(dim=-1)
    floors = [_top_p_floor(*row) for row in zip(logits_SV, log_totals_S, masses_S, strict=True)]
    return _keep_at_least(logits_SV, torch.stack(floors))


def _top_p_floor(logits_V: torch.Tensor, log_total: torch.Tensor, mass: torch.Tensor) -> torch.Tensor:
    """The lowest logit to keep. Sorting a whole vocabulary would take longer than the model does, so it leaves out
    tokens that are not needed: all that are as unlikely have half of what may be missing, at most."""
    unneeded = log_total + ((1 - mass) / (2 * len(logits_V))).log()
    sorted_C = _descending(logits_V[logits_V >= unneeded])
    probabilities_C = (sorted_C - log_total).exp()
    before_C = probabilities_C.cumsum(dim=-1) - probabilities_C
    return sorted_C[(before_C < mass).sum().clamp(min=1) - 1]


def _descending(x_C: torch.Tensor) -> torch.Tensor:
    """On CPUs numpy sorts ten times faster than torch."""
    if x_C.device.type != "cpu":
        return x_C.sort(descending=True).values
    return torch.from_numpy(-np.sort(-x_C.numpy()))


def _keep_at_least(logits_SV: torch.Tensor, floors_S: torch.Tensor) -> torch.Tensor:
    return logits_SV.masked_fill(logits_SV < floors_S[:, None], -torch.inf)
