"""An embedding model's replicas behind a Ray Serve handle."""

from __future__ import annotations

import asyncio

from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError
from ray.serve.handle import DeploymentHandle

from cluster.embedding.messages import EmbedderInfo, decode_info
from cluster.errors import ReplicaFullError, ReplicaGoneError


class ServeEmbeddingPort:
    """An `EmbeddingPort`. Serve chooses the replica."""

    def __init__(self, handle: DeploymentHandle[object]) -> None:
        self._handle = handle.options(_by_reference=False)  # by value: cheaper than the object store

    async def info(self) -> EmbedderInfo:
        return decode_info(await self._handle.info.remote())

    async def embed(self, sequences: bytes) -> bytes:
        response = self._handle.embed.remote(sequences)
        try:
            vectors: bytes = await response
        except asyncio.CancelledError:
            response.cancel()  # type: ignore[no-untyped-call]
            raise
        except BackPressureError:
            raise ReplicaFullError("too many calls wait for a replica") from None
        except RayActorError as error:
            raise ReplicaGoneError(f"a replica died ({type(error).__name__})") from error
        return vectors

    async def check(self) -> None:
        await self._handle.check.remote()
