"""The likeliest token of each row, and one drawn from its softmax.

Shape suffixes: R rows (U of them unsure), V vocabulary, N pieces of P numbers each.
"""

from __future__ import annotations

import torch

from replicas.kernels.cpu import functions
from replicas.kernels.cpu.library import is_loaded
from replicas.sampling.noise import gumbel_noise

_PIECE = 256
_LANES = 16


def argmax(x_RV: torch.Tensor) -> torch.Tensor:
    """The index of each row's largest number, the lowest on a tie. On CPUs torch finds a maximum's value several times
    faster than its place, so the place is looked for only in the piece that has the value."""
    if x_RV.device.type != "cpu" or x_RV.size(1) % _PIECE:
        return x_RV.argmax(dim=-1)
    pieces_RNP = x_RV.unflatten(1, (-1, _PIECE))
    best_R = pieces_RNP.amax(dim=-1).argmax(dim=-1)
    within_R = pieces_RNP[torch.arange(len(x_RV)), best_R].argmax(dim=-1)
    return torch.add(within_R, best_R, alpha=_PIECE)


def draw(logits_RV: torch.Tensor, keys_R: torch.Tensor) -> torch.Tensor:
    """The index of each row's largest sum of logit and noise. Where the compiled kernel is at hand it finds the same
    ones without computing most of the noise, and says where it can't tell."""
    if not (logits_RV.device.type == "cpu" and logits_RV.size(1) % _LANES == 0 and is_loaded()):
        return argmax(logits_RV + gumbel_noise(keys_R, logits_RV.size(1)))
    tokens_R = functions.draw(logits_RV.contiguous(), keys_R)
    unsure_U = (tokens_R < 0).nonzero()[:, 0]
    if len(unsure_U):
        tokens_R[unsure_U] = argmax(logits_RV[unsure_U] + gumbel_noise(keys_R[unsure_U], logits_RV.size(1)))
    return tokens_R
