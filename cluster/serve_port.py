"""A model's replicas behind a Ray Serve handle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
from ray.serve.exceptions import BackPressureError
from ray.serve.handle import DeploymentHandle

from cluster.codec import EngineInfo
from cluster.errors import ReplicaFullError
from cluster.router.membership import Members, membership

decode_info = msgspec.msgpack.Decoder(EngineInfo).decode


class ServePort:
    """A `ReplicaPort` over a handle whose router is a `DirectedRouter`: Serve keeps count of the calls and says which
    replicas run."""

    def __init__(self, handle: DeploymentHandle[object]) -> None:
        self._membership = membership(handle.app_name, handle.deployment_name)
        # Arguments and results travel by value: cheaper than the object store for messages of this size.
        self._handle = handle.options(_by_reference=False)

    async def info(self) -> EngineInfo:
        return decode_info(await self._handle.info.remote())

    def watch(self, on_members: Callable[[Members], None]) -> None:
        self._membership.watch(on_members)

    async def submit(self, replica: str, request_id: str, submit: bytes) -> bytes:
        response = self._handle.submit.remote(replica, request_id, submit)
        try:
            answer: bytes = await response
        except asyncio.CancelledError:
            response.cancel()  # type: ignore[no-untyped-call]  # ending the wait alone would leave the call running
            raise
        except BackPressureError:
            raise ReplicaFullError("too many calls wait for a replica") from None
        return answer

    async def check(self) -> None:
        await self._handle.check.remote()
