"""What an endpoint works with: the served models, the bus and the metrics, and the way to a model's replicas."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from cluster.bus_client import BusClient
from cluster.codec import EngineInfo, Finished, Refused, Stranger, Submit, decode_answer, encode
from cluster.gateway.errors import ApiError, unavailable
from cluster.gateway.limits import RateLimits
from cluster.gateway.settings import DoorSettings
from cluster.metrics import GatewayMetrics
from replicas.messages import GenerateRequest
from replicas.text.chat import ChatRenderer
from replicas.text.tokenizer import Tokenizer

Result = TypeVar("Result")

MAX_INTRODUCTIONS = 8  # a request may meet several replicas that do not know this gateway yet


class ReplicaPort(Protocol):
    """The way to a model's replicas: through a Serve handle, or straight to an engine process."""

    async def info(self) -> EngineInfo:
        """What the model's engines say of themselves."""

    async def submit(self, request_id: str, submit: bytes) -> bytes:
        """One unary call: an encoded Submit for an encoded Answer. Raises what broke it."""

    async def check(self) -> None:
        """Cross the step loop of a replica. Raises whatever is wrong with it."""


@dataclass(frozen=True, slots=True)
class ModelService:
    """One model as clients see it."""

    id: str
    port: ReplicaPort
    info: EngineInfo
    tokenizer: Tokenizer
    renderer: ChatRenderer
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    async def open(cls, model_id: str, port: ReplicaPort) -> ModelService:
        """Wait until a replica answers, then read the tokenizer from the model's files."""
        info = await port.info()
        tokenizer = await asyncio.to_thread(Tokenizer.open, Path(info.model_path))
        return cls(model_id, port, info, tokenizer, ChatRenderer(tokenizer))


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """`share_events`: tokens that wait together share one SSE event. `max_body_bytes` bounds a request's body."""

    share_events: bool = True
    max_body_bytes: int = 4 * 1024**2
    door: DoorSettings = field(default_factory=DoorSettings)


class GatewayService:
    """One gateway's state. Belongs to the event loop that created it."""

    def __init__(self, bus: BusClient, settings: GatewaySettings) -> None:
        self.bus = bus
        self.settings = settings
        self.metrics = GatewayMetrics(bus.loads, lambda: bus.lost_messages)
        self.limits = RateLimits(settings.door.limits, self.metrics)
        self.models: dict[str, ModelService] = {}
        self._text_threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="text")

    def model(self, name: str) -> ModelService:
        """Raises ApiError 404 for a model that is not served."""
        service = self.models.get(name)
        if service is not None:
            return service
        known = ", ".join(self.models)
        raise ApiError(
            404,
            f"The model {name[:80]!r} is not served here; try one of: {known}.",
            param="model",
            code="model_not_found",
        )

    async def generate(self, model: ModelService, request: GenerateRequest) -> Finished | Refused:
        """Have a replica generate, first joining its bus if it does not know this gateway yet. The tokens come over
        the bus meanwhile. Raises what broke the call."""
        submit = encode(Submit(self.bus.gateway_id, request))
        for _ in range(MAX_INTRODUCTIONS):
            answer = decode_answer(await model.port.submit(request.request_id, submit))
            if not isinstance(answer, Stranger):
                return answer
            await self.bus.connect(answer.bus_address)
        raise unavailable("No replica could be reached; try again.")

    async def off_loop(self, work: Callable[[], Result]) -> Result:
        """Run text work (templates, tokenization) where it does not delay other requests' tokens."""
        return await asyncio.get_running_loop().run_in_executor(self._text_threads, work)

    def close(self) -> None:
        self._text_threads.shutdown(wait=False)
        self.bus.close()
