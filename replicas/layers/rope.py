"""Rotary position embeddings (Su et al., 2021) and the ways to stretch them beyond the trained length.

The angles of a step are computed once and shared by all layers. Frequencies are float32 and follow the formulas
that checkpoints were trained with: linear (position interpolation, Chen et al., 2023), dynamic (NTK-aware
scaling by sequence length), yarn (Peng et al., 2023), llama3 (Meta, 2024).

Shape suffixes: T tokens, H heads, D head dimension, F = D / 2 frequencies.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from replicas.config import ModelConfig, RopeScaling


class RotaryEmbedding(nn.Module):
    """Turns positions into the (cos, sin) pair that `apply_rope` takes."""

    inv_freq_F: torch.Tensor

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.theta = config.rope_theta
        self.scaling = config.rope_scaling
        inv_freq_F = scaled_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        if config.rope_freq_factors:
            inv_freq_F = inv_freq_F / torch.tensor(config.rope_freq_factors)
        self.register_buffer("inv_freq_F", inv_freq_F.to(device), persistent=False)
        self.magnitude = attention_magnitude(config.rope_scaling)

    def forward(
        self, positions_T: torch.Tensor, rope_lengths_T: torch.Tensor | None, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """cos_T1F and sin_T1F. `rope_lengths_T` matters to dynamic scaling only: see `dynamic_frequencies`."""
        inv_freq = self.inv_freq_F
        if self.scaling is not None and self.scaling.kind == "dynamic":
            lengths_T = positions_T + 1 if rope_lengths_T is None else rope_lengths_T
            inv_freq = dynamic_frequencies(self.head_dim, self.theta, self.scaling, lengths_T)
        angles_T1F = (positions_T[:, None].float() * inv_freq)[:, None]
        return (angles_T1F.cos() * self.magnitude).to(dtype), (angles_T1F.sin() * self.magnitude).to(dtype)


def apply_rope(x_THD: torch.Tensor, cos_T1F: torch.Tensor, sin_T1F: torch.Tensor) -> torch.Tensor:
    """Rotate each pair (x[i], x[i + D / 2]) by its angle."""
    left_THF, right_THF = x_THD.chunk(2, dim=-1)
    return torch.cat((left_THF * cos_T1F - right_THF * sin_T1F, right_THF * cos_T1F + left_THF * sin_T1F), dim=-1)


def scaled_frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> torch.Tensor:
    """inv_freq_F for every kind; that of `dynamic` holds up to the original length."""
    inv_freq_F = 1.0 / theta ** _exponents(head_dim)
    if scaling is None or scaling.kind == "dynamic":
        return inv_freq_F
    if scaling.kind == "linear":
        return inv_freq_F / scaling.factor
    if scaling.kind == "llama3":
        return _llama3_frequencies(inv_freq_F, scaling)
    assert scaling.kind == "yarn", f"unknown rope scaling {scaling.kind}"
    return _yarn_frequencies(head_dim, theta, scaling)


def dynamic_frequencies(head_dim: int, theta: float, scaling: RopeScaling, lengths_T: torch.Tensor) -> torch.Tensor:
    """inv_freq_TF: the base grows with the length of the sequence once it exceeds the original maximum.

    The length is each token's own, fixed when the token is first computed: max(prompt length, position + 1).
    Those are the lengths that `transformers` uses when it prefills a prompt whole and then decodes, and they
    depend neither on the chunk, the batch, nor on a preemption. Where a caller gives none, position + 1 stands in,
    which equals feeding the prompt token by token.
    """
    original = scaling.original_max_positions
    lengths_T = lengths_T.clamp(min=original).double()
    stretch_T = scaling.factor * lengths_T / original - (scaling.factor - 1)
    bases_T = theta * stretch_T ** (head_dim / (head_dim - 2))
    return (1.0 / bases_T[:, None] ** _exponents(head_dim).to(bases_T)).float()


def attention_magnitude(scaling: RopeScaling | None) -> float:
    """What yarn multiplies cos and sin by, so that attention stays as sharp over longer contexts."""
    if scaling is None or scaling.kind != "yarn":
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale and scaling.mscale_all_dim:
        return _yarn_mscale(scaling.factor, scaling.mscale) / _yarn_mscale(scaling.factor, scaling.mscale_all_dim)
    return _yarn_mscale(scaling.factor, 1.0)


def _exponents(head_dim: int) -> torch.Tensor:
    return torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim


def _llama3_frequencies(inv_freq_F: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Divide the slow frequencies by the factor, keep the fast ones, and blend those between."""
    rotations_F = scaling.original_max_positions * inv_freq_F / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept_F = ((rotations_F - low) / (high - low)).clamp(0, 1)
    return (1 - kept_F) * inv_freq_F / scaling.factor + kept_F * inv_freq_F


def _yarn_frequencies(head_dim: int, theta: float, scaling: RopeScaling) -> torch.Tensor:
    """Interpolate the dimensions that turn less than `beta_slow` times over the original length, keep those that
    turn more than `beta_fast` times, and ramp between."""
    low = _yarn_dimension(scaling.beta_fast, head_dim, theta, scaling.original_max_positions)
    high = _yarn_dimension(scaling.beta_slow, head_dim, theta, scaling.original_max_positions)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    ramp_F = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    inv_freq_F = 1.0 / theta ** _exponents(head_dim)
    return inv_freq_F / scaling.factor * ramp_F + inv_freq_F * (1 - ramp_F)


def _yarn_dimension(rotations: float, head_dim: int, theta: float, length: int) -> float:
    """The (fractional) dimension whose frequency makes that many rotations over `length` tokens."""
    return head_dim * math.log(length / (rotations * 2 * math.pi)) / (2 * math.log(theta))


def _yarn_mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def stretched_length(scaling: RopeScaling | None, trained: int) -> int:
    """How many positions a model serves whose files say it was made for `trained`. Linear and dynamic scaling
    multiply that number, yarn multiplies the original one, llama3 files already state the stretched one."""
    if scaling is None or scaling.kind == "llama3":
        return trained
    if scaling.kind == "yarn":
        return max(trained, int(scaling.factor * scaling.original_max_positions))
    return int(scaling.factor * trained)
