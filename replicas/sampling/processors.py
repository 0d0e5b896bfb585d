"""What parameters make of logits before any token is chosen, for all rows of a batch at once.

The order is vLLM's and transformers': biases are added; the repetition penalty divides what is positive and multiplies
what is negative, for tokens of prompt and output (Keskar et al., 2019); frequency and presence penalties are subtracted
for tokens of the output; last come masks, whose order makes no difference. Penalties and biases touch few tokens of a
row, so they cost by the number of these, and nothing where there are none.

Shape suffixes: R rows to sample, V vocabulary, N (row, token) pairs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from replicas.sampling.bitmasks import apply_bitmasks
from replicas.sampling.rows import SampleRow


def process_logits(logits_RV: torch.Tensor, rows: Sequence[SampleRow]) -> None:
    """Change logits in place; what may not be drawn becomes minus infinity."""
    add_biases(logits_RV, rows)
    penalize(logits_RV, rows)
    confine(logits_RV, rows)
    ban(logits_RV, rows)


def add_biases(logits_RV: torch.Tensor, rows: Sequence[SampleRow]) -> None:
    biases = [(index, row.bias) for index, row in enumerate(rows) if row.bias is not None]
    if not biases:
        return
    pairs = _pairs([(index, bias.token_ids) for index, bias in biases], logits_RV.device)
    values_N = torch.from_numpy(np.concatenate([bias.values for _, bias in biases])).to(logits_RV.device)
    logits_RV.index_put_(pairs, values_N, accumulate=True)


def penalize(logits_RV: torch.Tensor, rows: Sequence[SampleRow]) -> None:
    penalized = [(index, row.params, row.seen) for index, row in enumerate(rows) if row.seen is not None]
    if not penalized:
        return
    device = logits_RV.device
    sizes = [len(seen) for _, _, seen in penalized]
    pairs = _pairs([(index, seen.token_ids) for index, _, seen in penalized], device)
    counts_N = torch.from_numpy(np.concatenate([seen.output_counts for _, _, seen in penalized])).to(device)

    def of_each_pair(penalties: list[float]) -> torch.Tensor:
        return torch.from_numpy(np.repeat(np.array(penalties, dtype=np.float32), sizes)).to(device)

    repetition_N = of_each_pair([params.repetition_penalty for _, params, _ in penalized])
    frequency_N = of_each_pair([params.frequency_penalty for _, params, _ in penalized])
    presence_N = of_each_pair([params.presence_penalty for _, params, _ in penalized])
    logits_N = logits_RV[pairs]
    logits_N = torch.where(logits_N < 0, logits_N * repetition_N, logits_N / repetition_N)
    logits_N -= frequency_N * counts_N
    logits_N -= presence_N * (counts_N > 0)
    logits_RV.index_put_(pairs, logits_N)


def confine(logits_RV: torch.Tensor, rows: Sequence[SampleRow]) -> None:
    """Exclude what is not allowed."""
    allowed = [(index, row.allowed_ids) for index, row in enumerate(rows) if row.allowed_ids is not None]
    if allowed:
        pairs = _pairs(allowed, logits_RV.device)
        logits_N = logits_RV[pairs]
        logits_RV[[index for index, _ in allowed]] = -torch.inf
        logits_RV.index_put_(pairs, logits_N)
    masked = [(index, row.bitmask) for index, row in enumerate(rows) if row.bitmask is not None]
    if masked:
        apply_bitmasks(logits_RV, [index for index, _ in masked], torch.stack([bitmask for _, bitmask in masked]))


def ban(logits_RV: torch.Tensor, rows: Sequence[SampleRow]) -> None:
    """Exclude banned tokens, except in a row where nothing else would be left: what is allowed comes first."""
    banned = [(index, row.banned_ids) for index, row in enumerate(rows) if row.banned_ids]
    if not banned:
        return
    doubtful = [index for index, ids in banned if rows[index].is_confined or len(ids) >= logits_RV.size(1)]
    before = logits_RV[doubtful] if doubtful else None
    exclude(logits_RV, banned)
    if before is not None:
        is_empty = logits_RV[doubtful].amax(dim=-1, keepdim=True) == -torch.inf
        logits_RV[doubtful] = torch.where(is_empty, before, logits_RV[doubtful])


def exclude(logits_RV: torch.Tensor, tokens_of_rows: Sequence[tuple[int, Sequence[int]]]) -> None:
    """Make these logits of some rows minus infinity."""
    pairs = _pairs(
        [(index, np.array(token_ids, dtype=np.int64)) for index, token_ids in tokens_of_rows], logits_RV.device
    )
    logits_RV.index_put_(pairs, torch.tensor(-torch.inf, device=logits_RV.device))


def _pairs(tokens_of_rows: Sequence[tuple[int, np.ndarray]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices of (row, token) for all these tokens."""
    rows_N = np.repeat([index for index, _ in tokens_of_rows], [len(token_ids) for _, token_ids in tokens_of_rows])
    token_ids_N = np.concatenate([token_ids for _, token_ids in tokens_of_rows])
    return torch.from_numpy(rows_N).to(device), torch.from_numpy(token_ids_N).to(device)
