"""A model's replicas behind a Ray Serve handle."""

from __future__ import annotations

import asyncio

import msgspec
from ray.serve.exceptions import BackPressureError
from ray.serve.handle import DeploymentHandle

from cluster.codec import EngineInfo
from cluster.gateway.errors import unavailable

decode_info = msgspec.msgpack.Decoder(EngineInfo).decode


class ServePort:
    """A `ReplicaPort` over a handle: Serve chooses the replica, retries rejections and keeps count."""

    def __init__(self, handle: DeploymentHandle[object]) -> None:
        # Arguments and results travel by value: cheaper than the object store for messages of this size.
        self._handle = handle.options(_by_reference=False)

    async def info(self) -> EngineInfo:
        return decode_info(await self._handle.info.remote())

    async def submit(self, request_id: str, submit: bytes) -> bytes:
        response = self._handle.submit.remote(request_id, submit)
        try:
            answer: bytes = await response
        except asyncio.CancelledError:
            response.cancel()  # type: ignore[no-untyped-call]  # ending the wait alone would leave the call running
            raise
        except BackPressureError:
            raise unavailable("All replicas are busy and their queues are full; try again.") from None
        return answer

    async def check(self) -> None:
        await self._handle.check.remote()
