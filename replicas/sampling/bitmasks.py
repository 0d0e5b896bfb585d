"""Masks of constrained rows applied to logits.

A mask often allows few tokens, as between two properties of an object, or excludes few, as within a string. On CPUs
only these are touched then: which they are is seen from the words that are not empty, or not full.

Shape suffixes: R rows to sample, V vocabulary, N masked rows, W words of 32 tokens each.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

DENSE = 8  # the share of words beyond which all tokens are touched

_BITS = 32
_BIASES = np.where(np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"), 0, -np.inf)
_BIASES = _BIASES.astype(np.float32)  # what each byte of a mask adds to the logits of its eight tokens


def apply_bitmasks(logits_RV: torch.Tensor, rows: Sequence[int], words_NW: torch.Tensor) -> None:
    """Make logits minus infinity, in place, whose tokens' bits are not set."""
    if logits_RV.device.type != "cpu":
        _apply_all(logits_RV, rows, words_NW)
        return
    for row, words_W in zip(rows, words_NW.numpy(), strict=True):
        _apply(logits_RV[row].numpy(), words_W)


def _apply(logits_V: np.ndarray, words_W: np.ndarray) -> None:
    allowing, excluding = np.count_nonzero(words_W), np.count_nonzero(words_W + 1)
    if min(allowing, excluding) > len(words_W) // DENSE:
        logits_V += _BIASES[words_W.view(np.uint8)].reshape(-1)[: len(logits_V)]
    elif excluding < allowing:
        logits_V[_tokens(~words_W, len(logits_V))] = -np.inf
    else:
        allowed = _tokens(words_W, len(logits_V))
        kept = logits_V[allowed]
        logits_V.fill(-np.inf)
        logits_V[allowed] = kept


def _tokens(words_W: np.ndarray, vocab_size: int) -> np.ndarray:
    """The tokens whose bits are set."""
    used = np.flatnonzero(words_W)
    bits = np.unpackbits(words_W[used].view(np.uint8), bitorder="little").reshape(-1, _BITS)
    word, bit = np.nonzero(bits)
    tokens: np.ndarray = used[word] * _BITS + bit
    return tokens[: np.searchsorted(tokens, vocab_size)]


def _apply_all(logits_RV: torch.Tensor, rows: Sequence[int], words_NW: torch.Tensor) -> None:
    """Packed, masks travel to a GPU faster."""
    device = logits_RV.device
    places = torch.arange(_BITS, dtype=torch.int32, device=device)
    words = words_NW.to(device, non_blocking=True)
    banned_NV = (((words[:, :, None] >> places) & 1) == 0).flatten(1)[:, : logits_RV.size(1)]
    if len(rows) == len(logits_RV):
        logits_RV.masked_fill_(banned_NV, -torch.inf)
    else:
        index = torch.tensor(rows, device=device)
        logits_RV[index] = logits_RV[index].masked_fill(banned_NV, -torch.inf)
