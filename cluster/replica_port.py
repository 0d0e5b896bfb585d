"""What a gateway needs of the way to one model's replicas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from cluster.codec import EngineInfo


class ReplicaPort(Protocol):
    """The way to a model's replicas: through a Serve handle, or straight to an engine process."""

    async def info(self) -> EngineInfo:
        """What the model's engines say of themselves."""

    def watch(self, on_members: Callable[[Mapping[str, str]], None]) -> None:
        """Call back now and at every change with the replicas that run, each with the address of its bus."""

    async def submit(self, replica: str, request_id: str, submit: bytes) -> bytes:
        """One unary call: an encoded Submit for an encoded Answer. Raises ReplicaGoneError, ReplicaFullError, or what
        broke the call."""

    async def check(self) -> None:
        """Cross the step loop of a replica. Raises whatever is wrong with it."""
