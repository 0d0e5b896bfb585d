"""Counter-based randomness: noise is a function of (seed, choice, position, token id) and of nothing else.

Adding Gumbel noise to logits and taking the largest draws from their softmax (Gumbel-max trick). Since the noise
depends on no state, a sample is the same whatever the batch, the chunking, a preemption or a restart. The mixing
function is the finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).

Shape suffixes: R rows, V vocabulary.
"""

from __future__ import annotations

import torch

GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # as a signed 64-bit integer; torch arithmetic on int64 wraps
MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
MIX_2 = 0x94D049BB133111EB - 2**64
UNIFORM_BITS = 23  # so that the midpoints of 2**23 intervals in (0, 1) are exact in float32


def row_keys(seeds_R: torch.Tensor, choices_R: torch.Tensor, positions_R: torch.Tensor) -> torch.Tensor:
    """What tells rows apart. All are int64 of shape (R,)."""
    return mix(mix(mix(seeds_R) ^ choices_R) ^ positions_R)


def gumbel_noise(keys_R: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Standard Gumbel noise, float32 of shape (R, V)."""
    tokens_V = torch.arange(1, vocab_size + 1, dtype=torch.int64, device=keys_R.device) * GOLDEN
    bits_RV = mix(keys_R[:, None] + tokens_V)
    uniform_RV = _shift_right(bits_RV, 64 - UNIFORM_BITS).float().add_(0.5).mul_(2.0**-UNIFORM_BITS)
    return uniform_RV.log_().neg_().log_().neg_()


def mix(x: torch.Tensor) -> torch.Tensor:
    """A bijection on 64-bit integers whose output bits each depend on all input bits."""
    x = x + GOLDEN
    x = (x ^ _shift_right(x, 30)) * MIX_1
    x = (x ^ _shift_right(x, 27)) * MIX_2
    return x ^ _shift_right(x, 31)


def _shift_right(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical shift: torch shifts the sign in."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
