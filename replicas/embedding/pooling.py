"""From the hidden states of a text's tokens to one vector of length 1.

Shape suffixes: T tokens of all sequences, S sequences, H hidden.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from replicas.embedding.config import Pooling


def pool(hidden_TH: torch.Tensor, lengths: Sequence[int], pooling: Pooling) -> torch.Tensor:
    """vectors_SH in float32: the mean of each sequence's tokens, or the first or last of them, normalised."""
    lengths_S = torch.tensor(lengths, device=hidden_TH.device)
    ends_S = lengths_S.cumsum(0)
    match pooling:
        case "mean":
            sums_SH = [part_TH.float().sum(0) for part_TH in hidden_TH.split(list(lengths))]
            vectors_SH = torch.stack(sums_SH) / lengths_S[:, None]
        case "cls":
            vectors_SH = hidden_TH[ends_S - lengths_S].float()
        case "last":
            vectors_SH = hidden_TH[ends_S - 1].float()
    return F.normalize(vectors_SH, dim=-1)
