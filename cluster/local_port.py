"""Engine processes in place of replicas behind Serve: the gateway without Ray, for tests and profiling."""

from __future__ import annotations

from collections.abc import Callable

from cluster.codec import EngineInfo
from cluster.engine_client import EngineClient
from cluster.errors import ReplicaGoneError
from cluster.router.membership import Members

CHECK_SECONDS = 5.0


class LocalPort:
    """A `ReplicaPort` straight to engine processes, each a replica by the name of its place."""

    def __init__(self, *engines: EngineClient) -> None:
        self._engines = {f"local-{place}": engine for place, engine in enumerate(engines)}
        self._on_members: Callable[[Members], None] | None = None

    async def info(self) -> EngineInfo:
        return next(iter(self._engines.values())).info

    def watch(self, on_members: Callable[[Members], None]) -> None:
        self._on_members = on_members
        self._tell()

    def drain(self, replica: str) -> EngineClient:
        """Let a replica take no more requests, as Serve does before it stops one."""
        engine = self._engines.pop(replica)
        self._tell()
        return engine

    async def submit(self, replica: str, request_id: str, submit: bytes) -> bytes:
        if replica not in self._engines:
            raise ReplicaGoneError(f"there is no replica {replica}")
        return await self._engines[replica].generate(request_id, submit)

    async def check(self) -> None:
        for engine in self._engines.values():
            await engine.ping(CHECK_SECONDS)

    def _tell(self) -> None:
        if self._on_members is not None:
            self._on_members({name: engine.info.bus_address for name, engine in self._engines.items()})
