"""How long a step takes: the polynomials of NVIDIA Dynamo's mocker, so that its own simulator can be compared with.

A step that computes `n` prompt tokens takes 4.209989e-7 n² + 1.518344e-2 n + 16.50142 ms for them, whosever they are;
one that continues answers takes -25.74 u² + 54.01 u + 5.74 ms for those, at least 1 ms, where `u` is the tokens of
their contexts over the KV capacity in tokens. A mixed step takes the sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Seconds = np.ndarray[tuple[int], np.dtype[np.float64]]


def prefill_seconds(num_tokens: int) -> float:
    if num_tokens == 0:
        return 0.0
    return (4.209989e-7 * num_tokens * num_tokens + 1.518344e-2 * num_tokens + 16.50142) / 1e3


@dataclass(frozen=True, slots=True)
class DecodeTiming:
    """Decode steps of an engine whose KV cache holds `capacity_tokens`."""

    capacity_tokens: int

    def seconds(self, context_tokens: int) -> float:
        """Of a step that continues answers whose contexts, new tokens included, have so many tokens together."""
        if context_tokens == 0:
            return 0.0
        used = context_tokens / self.capacity_tokens
        return max(-25.74 * used * used + 54.01 * used + 5.74, 1.0) / 1e3

    def run_seconds(self, context_tokens: int, rows: int, steps: int) -> Seconds:
        """Of each of `steps` steps in a row that continue the same `rows` answers; `context_tokens` as of the first."""
        used = (context_tokens + rows * np.arange(steps)) / self.capacity_tokens
        return np.maximum(-25.74 * used * used + 54.01 * used + 5.74, 1.0) / 1e3
