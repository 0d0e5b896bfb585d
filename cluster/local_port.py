"""A model's one engine process in place of replicas behind Serve: the gateway without Ray, for tests and profiling."""

from __future__ import annotations

from cluster.codec import EngineInfo
from cluster.engine_client import EngineClient

CHECK_SECONDS = 5.0


class LocalPort:
    """A `ReplicaPort` straight to an engine process."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine

    async def info(self) -> EngineInfo:
        return self._engine.info

    async def submit(self, request_id: str, submit: bytes) -> bytes:
        return await self._engine.generate(request_id, submit)

    async def check(self) -> None:
        await self._engine.ping(CHECK_SECONDS)
