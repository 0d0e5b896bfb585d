"""How an embedding model is run. Imports nothing heavy, so that all processes may read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from replicas.config import EngineConfig

Pooling = Literal["mean", "cls", "last"]


@dataclass(frozen=True, slots=True)
class EmbeddingConfig:
    """How one replica makes vectors. Of `engine` it takes dtype, quantization, kernels, device, threads,
    max_batched_tokens, max_model_len, block_size and, for decoders, kv_cache_memory. What is left open, the model's
    files say; if they do not, encoders take the mean and decoders the last token. `dimensions` are the lengths to which
    a model's vectors may be cut, if it was trained for that."""

    engine: EngineConfig
    pooling: Pooling | None = None
    dimensions: tuple[int, ...] = ()
