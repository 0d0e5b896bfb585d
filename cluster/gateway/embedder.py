"""One embedding model as clients see it, and the way to its replicas."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from cluster.embedding.messages import EmbedderInfo, Vectors, calls, decode_vectors, encode
from cluster.embedding.port import EmbeddingPort
from cluster.errors import ReplicaFullError, ReplicaGoneError
from cluster.gateway.errors import too_many_requests, unavailable
from cluster.metrics import GatewayMetrics
from replicas.text.text_tokenizer import TextTokenizer, open_text_tokenizer

ATTEMPTS = 3  # replicas that are asked one after the other if they die


@dataclass(frozen=True, slots=True)
class EmbedderService:
    id: str
    port: EmbeddingPort
    info: EmbedderInfo
    tokenizer: TextTokenizer
    metrics: GatewayMetrics
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    async def open(cls, model_id: str, port: EmbeddingPort, metrics: GatewayMetrics) -> EmbedderService:
        """Wait until a replica answers, and read the tokenizer from its files."""
        info = await port.info()
        tokenizer = await asyncio.to_thread(open_text_tokenizer, Path(info.model_path))
        metrics.embedding_max_batch.labels(model_id).set(info.max_batch_size)
        metrics.embedding_window.labels(model_id).set(info.batch_wait)
        return cls(model_id, port, info, tokenizer, metrics)

    async def embed(self, sequences: Sequence[Sequence[int]]) -> np.ndarray:
        """A row for each sequence. Raises ApiError."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._call(encode(call))) for call in calls(sequences)]
        return np.concatenate([task.result().rows() for task in tasks])

    async def _call(self, sequences: bytes) -> Vectors:
        """A replica that dies has done nothing that cannot be done again."""
        for _ in range(ATTEMPTS):
            try:
                vectors = decode_vectors(await self.port.embed(sequences))
            except ReplicaGoneError:
                continue
            except ReplicaFullError:
                raise too_many_requests("The server is overloaded: its queue is full.", 1.0, "overloaded") from None
            for batch_size, wait in zip(vectors.batch_sizes, vectors.waits, strict=True):
                self.metrics.embedding_batches.labels(self.id).observe(batch_size)
                self.metrics.embedding_waits.labels(self.id).observe(wait)
            return vectors
        raise unavailable("The replicas that were asked have died; try again.")
