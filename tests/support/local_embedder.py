"""An embedding model without Ray: what comes at the same time is not computed together."""

from __future__ import annotations

from pathlib import Path

from cluster.embedding.batcher import Batcher, Done, Item
from cluster.embedding.messages import EmbedderInfo, Vectors, decode_sequences, encode
from replicas.config import EngineConfig
from replicas.embedding.config import EmbeddingConfig
from replicas.embedding.open import open_embedding_model


class LocalEmbedder:
    """An `EmbeddingPort`. `faults` are raised by the next calls, one by each."""

    def __init__(self, path: Path, dimensions: tuple[int, ...] = ()) -> None:
        self._model = open_embedding_model(path, EmbeddingConfig(EngineConfig(threads=1), dimensions=dimensions))
        self._path = path
        self._batcher: Batcher | None = None
        self.faults: list[Exception] = []
        self.calls = 0

    async def info(self) -> EmbedderInfo:
        self._batcher = Batcher(lambda sequences: self._model.embed(sequences).numpy(), self._join)
        shape = self._model.shape
        return EmbedderInfo(
            model_path=str(self._path),
            size=shape.size,
            max_model_len=shape.max_model_len,
            vocab_size=shape.vocab_size,
            pooling=shape.pooling,
            dtype=shape.dtype,
            dimensions=shape.dimensions,
            any_dimension=shape.any_dimension,
            max_batch_size=1,
            batch_wait=0.0,
        )

    async def embed(self, sequences: bytes) -> bytes:
        self.calls += 1
        if self.faults:
            raise self.faults.pop(0)
        done = await self._batcher.embed(decode_sequences(sequences))
        return encode(
            Vectors(
                b"".join(each.vector.tobytes() for each in done),
                tuple(each.batch_size for each in done),
                tuple(each.wait for each in done),
            )
        )

    async def check(self) -> None:
        await self._batcher.embed([[0]])

    async def _join(self, item: Item) -> Done:
        return (await self._batcher.run([item]))[0]
