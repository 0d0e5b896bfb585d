"""One row of logits that a token is to be drawn from, with all that shapes them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from replicas.sampling.params import SamplingParams
from replicas.sampling.seen_tokens import SeenTokens


@dataclass(frozen=True, slots=True, eq=False)
class SparseBias:
    """What is added to the logits of some tokens."""

    token_ids: np.ndarray
    values: np.ndarray

    @classmethod
    def of(cls, pairs: Iterable[tuple[int, float]]) -> SparseBias:
        token_ids, values = zip(*pairs, strict=True)
        return cls(np.array(token_ids, dtype=np.int64), np.array(values, dtype=np.float32))


@dataclass(frozen=True, slots=True, eq=False)
class SampleRow:
    """`position` is the index of the new token in prompt plus output. `banned_ids` may not be drawn: stop tokens before
    min_tokens are reached, the ends of bad words. Penalties need `seen`. `allowed_ids` and `bitmask` each say which
    tokens may be drawn and no others; the latter holds 32 tokens in each int32, the first in its lowest bit."""

    params: SamplingParams
    position: int
    banned_ids: tuple[int, ...] = ()
    bias: SparseBias | None = None
    seen: SeenTokens | None = None
    allowed_ids: np.ndarray | None = None
    bitmask: torch.Tensor | None = None

    @property
    def is_confined(self) -> bool:
        """Whether only certain tokens may be drawn."""
        return self.allowed_ids is not None or self.bitmask is not None

    @property
    def needs_whole_logits(self) -> bool:
        """Whether more must be known of the logits than which are the largest."""
        parts = (self.bias, self.seen, self.allowed_ids, self.bitmask, self.params.logprobs)
        return not self.params.greedy or any(part is not None for part in parts)
