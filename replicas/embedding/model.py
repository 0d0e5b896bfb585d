"""An embedding model, ready to turn token ids into vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from replicas.embedding.config import Pooling
from replicas.embedding.pooling import pool

TokenIds = Sequence[int]

MOST_SEQUENCES = 256  # computed at once


class Encoder(Protocol):
    """Computes sequences that have nothing to do with each other."""

    def __call__(self, sequences: Sequence[TokenIds]) -> torch.Tensor:
        """hidden_TH of all their tokens, after the last layer."""


@dataclass(frozen=True, slots=True)
class VectorShape:
    """What a model's vectors look like, and of how many tokens at most one is made. `dimensions` are the lengths to
    which they may be cut; `any_dimension` allows all shorter ones."""

    pooling: Pooling
    size: int
    max_model_len: int
    vocab_size: int
    dtype: str
    dimensions: tuple[int, ...] = ()
    any_dimension: bool = False


class EmbeddingModel:
    """`max_batched_tokens` bounds what is computed at once, but for one sequence that is longer than that."""

    def __init__(self, encoder: Encoder, shape: VectorShape, max_batched_tokens: int) -> None:
        self.shape = shape
        self._encoder = encoder
        self._max_batched_tokens = max_batched_tokens

    @torch.inference_mode()
    def embed(self, sequences: Sequence[TokenIds]) -> torch.Tensor:
        """vectors_SH on the CPU, in float32, of length 1. Sequences of equal length are computed side by side."""
        assert all(sequences), "a sequence without tokens has no vector"
        by_length = sorted(range(len(sequences)), key=lambda index: len(sequences[index]))
        vectors_SH = torch.empty(len(sequences), self.shape.size)
        for indices in self._batches(by_length, sequences):
            batch = [sequences[index] for index in indices]
            hidden_TH = self._encoder(batch)
            vectors_SH[indices] = pool(hidden_TH, list(map(len, batch)), self.shape.pooling).cpu()
        return vectors_SH

    def _batches(self, order: Sequence[int], sequences: Sequence[TokenIds]) -> Iterator[list[int]]:
        batch: list[int] = []
        num_tokens = 0
        for index in order:
            is_full = num_tokens + len(sequences[index]) > self._max_batched_tokens or len(batch) == MOST_SEQUENCES
            if batch and is_full:
                yield batch
                batch, num_tokens = [], 0
            batch.append(index)
            num_tokens += len(sequences[index])
        if batch:
            yield batch
