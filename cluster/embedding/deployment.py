"""The Serve deployment of one embedding model. Each replica computes in its own process, a batch at a time."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import numpy as np
from ray import serve

from cluster.embedding.batcher import Batcher, Done, Item, Sequences
from cluster.embedding.messages import EmbedderInfo, EmbedderSpec, Vectors, decode_sequences, encode
from cluster.engine_client import thread_environment
from cluster.logs import configure_logging
from cluster.resources import cpus_per_rank, on_gpu

DRAIN_SECONDS = 60.0
QUEUE_FACTOR = 64  # calls that may be under way at a replica, in batches


class Embedder:
    async def __init__(self, spec: EmbedderSpec) -> None:  # type: ignore[misc]  # Serve awaits it
        configure_logging()
        os.environ |= thread_environment(spec.config.engine.threads)  # read when torch is imported, which is now
        from replicas.embedding.open import open_embedding_model

        stages: list[tuple[str, float]] = []
        path = Path(spec.model_path)
        model = await asyncio.to_thread(
            open_embedding_model, path, spec.config, lambda name, seconds: stages.append((name, seconds))
        )
        shape = model.shape
        self._info = EmbedderInfo(
            model_path=spec.model_path,
            size=shape.size,
            max_model_len=shape.max_model_len,
            vocab_size=shape.vocab_size,
            pooling=shape.pooling,
            dtype=shape.dtype,
            dimensions=shape.dimensions,
            any_dimension=shape.any_dimension,
            max_batch_size=spec.max_batch_size,
            batch_wait=spec.batch_wait,
            stages=tuple(stages),
        )

        def compute(sequences: Sequences) -> np.ndarray:
            return model.embed(sequences).numpy()

        join: Any = self._batch
        join.set_max_batch_size(spec.max_batch_size)
        join.set_batch_wait_timeout_s(spec.batch_wait)
        self._batcher = Batcher(compute, join)

    async def info(self) -> bytes:
        return encode(self._info)

    async def embed(self, sequences: bytes) -> bytes:
        """Encoded token ids for encoded Vectors."""
        done = await self._batcher.embed(decode_sequences(sequences))
        data = np.stack([each.vector for each in done]).astype("<f4").tobytes()
        return encode(Vectors(data, tuple(each.batch_size for each in done), tuple(each.wait for each in done)))

    async def check(self) -> None:
        """Cross the batches."""
        await self._batcher.embed([[0]])

    @serve.batch
    async def _batch(self, items: list[Item]) -> list[Done]:
        return await self._batcher.run(items)


def embedder_deployment(name: str, num_replicas: int, spec: EmbedderSpec) -> serve.Deployment:
    """Serve sends each call to the less busy of two replicas, and refuses more than the queues hold."""
    engine = spec.config.engine
    options: dict[str, Any] = {"num_cpus": cpus_per_rank(engine), "num_gpus": int(on_gpu(engine))}
    return serve.deployment(
        name=name,
        num_replicas=num_replicas,
        max_ongoing_requests=QUEUE_FACTOR * spec.max_batch_size,
        max_queued_requests=QUEUE_FACTOR * spec.max_batch_size,
        graceful_shutdown_timeout_s=DRAIN_SECONDS,
        graceful_shutdown_wait_loop_s=0.1,
        ray_actor_options=options,
    )(Embedder)
