"""What a gateway needs of the way to one embedding model's replicas."""

from __future__ import annotations

from typing import Protocol

from cluster.embedding.messages import EmbedderInfo


class EmbeddingPort(Protocol):
    """Through a Serve handle, or straight to a model."""

    async def info(self) -> EmbedderInfo: ...

    async def embed(self, sequences: bytes) -> bytes:
        """Encoded token ids for encoded Vectors. Raises ReplicaFullError or ReplicaGoneError."""

    async def check(self) -> None:
        """Compute something. Raises whatever is wrong."""
