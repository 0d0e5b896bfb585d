"""Masks exclude exactly the tokens whose bits are not set."""

from __future__ import annotations

import pytest
import torch

from replicas.sampling.bitmasks import apply_bitmasks


def packed(allowed_NV: torch.Tensor) -> torch.Tensor:
    """Bit by bit, with the bits beyond the vocabulary set or not as it comes."""
    padded_NV = torch.nn.functional.pad(allowed_NV, (0, -allowed_NV.size(1) % 32), value=True)
    bits_NWB = padded_NV.unflatten(1, (-1, 32)).long()
    words_NW = (bits_NWB << torch.arange(32)).sum(-1)
    return torch.where(words_NW >= 2**31, words_NW - 2**32, words_NW).int()


@pytest.mark.parametrize("vocab_size", [32, 33, 100, 1000])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99, 1.0])
def test_only_what_is_allowed_keeps_its_logit(vocab_size, share):
    generator = torch.Generator().manual_seed(vocab_size)
    logits_RV = torch.randn(5, vocab_size, generator=generator)
    allowed_NV = torch.rand(3, vocab_size, generator=generator) < share
    allowed_NV[:, 7] = True
    expected_RV = logits_RV.clone()
    rows = [4, 0, 2]
    for row, allowed_V in zip(rows, allowed_NV, strict=True):
        expected_RV[row, ~allowed_V] = -torch.inf
    apply_bitmasks(logits_RV, rows, packed(allowed_NV))
    assert torch.equal(logits_RV, expected_RV)
