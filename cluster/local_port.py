"""A model's one engine process in place of replicas behind Serve: the gateway without Ray, for tests and profiling."""

from __future__ import annotations

from collections.abc import Callable

from cluster.codec import EngineInfo
from cluster.engine_client import EngineClient
from cluster.router.membership import Members

LOCAL = "local"
CHECK_SECONDS = 5.0


class LocalPort:
    """A `ReplicaPort` straight to an engine process."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine

    async def info(self) -> EngineInfo:
        return self._engine.info

    def watch(self, on_members: Callable[[Members], None]) -> None:
        on_members({LOCAL: self._engine.info.bus_address})

    async def submit(self, replica: str, request_id: str, submit: bytes) -> bytes:
        return await self._engine.generate(request_id, submit)

    async def check(self) -> None:
        await self._engine.ping(CHECK_SECONDS)
