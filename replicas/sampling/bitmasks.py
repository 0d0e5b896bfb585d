"""Masks of constrained rows applied to logits.

Shape suffixes: R rows to sample, V vocabulary, N masked rows, W words of 32 tokens each.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch


def apply_bitmasks(logits_RV: torch.Tensor, rows: Sequence[int], words_NW: torch.Tensor) -> None:
    """Make logits minus infinity, in place, whose tokens' bits are not set."""
    banned_NV = unset_bits(words_NW, logits_RV.device)[:, : logits_RV.size(1)]
    if len(rows) == len(logits_RV):
        logits_RV.masked_fill_(banned_NV, -torch.inf)
        return
    for row, banned_V in zip(rows, banned_NV, strict=True):
        logits_RV[row].masked_fill_(banned_V, -torch.inf)


def unset_bits(words_NW: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Whether each bit is 0. The words come from the CPU; packed they travel to a GPU."""
    if device.type == "cpu":
        bits = np.unpackbits(words_NW.numpy().view(np.uint8), axis=1, bitorder="little")
        return torch.from_numpy(bits) == 0
    places = torch.arange(32, dtype=torch.int32, device=device)
    words = words_NW.to(device, non_blocking=True)
    return ((words[:, :, None] >> places) & 1).flatten(1) == 0
