"""What an endpoint works with: the served models, the bus and the metrics, and the way to a model's replicas."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TypeVar

from cluster.bus_client import BusClient
from cluster.codec import EngineInfo
from cluster.desk import Desk
from cluster.dispatch import Dispatcher
from cluster.embedding.port import EmbeddingPort
from cluster.failover import Broken
from cluster.fleet import Fleet
from cluster.gateway.embedder import EmbedderService
from cluster.gateway.errors import ApiError, bad_request
from cluster.gateway.farewell import Farewell
from cluster.gateway.gate import Gate
from cluster.gateway.limits import RateLimits
from cluster.gateway.settings import AdmissionSettings, DoorSettings, TextSettings
from cluster.lead import Colleagues
from cluster.metrics import GatewayMetrics
from cluster.replica_port import ReplicaPort
from cluster.router.placement import Placement
from cluster.router.room import Room
from replicas.text.chat import ChatRenderer
from replicas.text.dialect import find_dialect
from replicas.text.tokenizer import Tokenizer

Result = TypeVar("Result")

ARRIVAL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class ModelService:
    """One model as clients see it."""

    id: str
    port: ReplicaPort
    info: EngineInfo
    tokenizer: Tokenizer
    renderer: ChatRenderer
    gate: Gate
    dispatcher: Dispatcher
    takes_templates: bool = False
    created: int = field(default_factory=lambda: int(time.time()))


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """`share_events`: tokens that wait together share one SSE event. `max_body_bytes` bounds a request's body. A
    replica that drains is left after `move_after` seconds. Other gateways reach this one at `bus_host`, by default the
    address by which the cluster knows its node. `text` is by model id."""

    share_events: bool = True
    max_body_bytes: int = 4 * 1024**2
    move_after: float = 10.0
    bus_host: str = ""
    door: DoorSettings = field(default_factory=DoorSettings)
    text: Mapping[str, TextSettings] = field(default_factory=dict)


class GatewayService:
    """One gateway's state. Belongs to the event loop that created it. Other gateways reach it at `host`."""

    def __init__(self, host: str, settings: GatewaySettings) -> None:
        self._desk = Desk(host)
        self.bus = bus = BusClient(self._desk.address)
        self._colleagues = Colleagues(self._desk.address, bus.desks)
        self.settings = settings
        self.metrics = GatewayMetrics(bus.loads, lambda: bus.lost_messages)
        self.limits = RateLimits(settings.door.limits, self.metrics)
        self.models: dict[str, ModelService] = {}
        self.embedders: dict[str, EmbedderService] = {}
        self.farewell = Farewell()
        self._text_threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="text")

    def model(self, name: str) -> ModelService:
        """Raises ApiError 404 for a model that is not served."""
        service = self.models.get(name)
        if service is not None:
            return service
        if name in self.embedders:
            raise bad_request(f"{name} makes embeddings, and no text; use it at /v1/embeddings.", "model")
        raise _not_served(name, self.models)

    def embedder(self, name: str) -> EmbedderService:
        """Raises ApiError for a model that is not served, or makes no embeddings."""
        service = self.embedders.get(name)
        if service is not None:
            return service
        if name in self.models:
            raise bad_request(f"{name} makes text; for embeddings it must be served under another id, too.", "model")
        raise _not_served(name, self.embedders)

    async def open_embedder(self, model_id: str, port: EmbeddingPort) -> None:
        """Serve one more embedding model, as soon as a replica of it answers."""
        self.embedders[model_id] = await EmbedderService.open(model_id, port, self.metrics)

    async def open_model(self, model_id: str, port: ReplicaPort) -> None:
        """Serve one more model: wait until a replica of it answers, read the tokenizer from its files, and join the
        replica's bus."""
        info, metrics = await port.info(), self.metrics
        tokenizer = await asyncio.to_thread(Tokenizer.open, Path(info.model_path))
        placement = Placement(info.block_size, Random())
        fleet = Fleet(model_id, self.bus, placement, self._colleagues)
        gate = self._gate(model_id, info, Room(placement.loads, fleet.num_guests, info.max_running))
        fleet.on_change = gate.notify
        port.watch(fleet.update)
        while not fleet.open_replicas:
            await fleet.wait_for_arrival(ARRIVAL_SECONDS)
        self._desk.open(model_id, placement)
        metrics.replicas_open.labels(model_id).set_function(lambda: fleet.open_replicas)
        metrics.circuits_open.labels(model_id).set_function(lambda: fleet.open_circuits)

        def on_break(broken: Broken) -> None:
            metrics.failovers.labels(model_id, broken.name.lower()).inc()

        dispatcher = Dispatcher(self.bus, fleet, port, info, self.settings.move_after, on_break)
        text = self.settings.text.get(model_id, TextSettings())
        dialect = find_dialect(
            tokenizer.chat_template, tokenizer.control_tokens, text.tool_parser, text.reasoning_parser
        )
        self.models[model_id] = ModelService(
            model_id,
            port,
            info,
            tokenizer,
            ChatRenderer(tokenizer, dialect),
            gate,
            dispatcher,
            text.takes_templates,
        )

    def _gate(self, model_id: str, info: EngineInfo, room: Room) -> Gate:
        settings = self.settings.door.admission.get(model_id, AdmissionSettings())

        def queue_tokens() -> int:
            return settings.queue_tokens or room.num_replicas * info.num_blocks * info.block_size

        return Gate(model_id, room, self.metrics, queue_tokens, settings.ttft_seconds)

    async def off_loop(self, work: Callable[[], Result]) -> Result:
        """Run text work (templates, tokenization) where it does not delay other requests' tokens."""
        return await asyncio.get_running_loop().run_in_executor(self._text_threads, work)

    def close(self) -> None:
        self._text_threads.shutdown(wait=False)
        self._desk.close()
        self._colleagues.close()
        self.bus.close()


def _not_served(name: str, known: Iterable[str]) -> ApiError:
    models = ", ".join(known)
    hint = f"try one of: {models}" if models else "no model for this path is"
    return ApiError(404, f"The model {name[:80]!r} is not served here; {hint}.", param="model", code="model_not_found")
