"""The Serve deployment of one model: each replica supervises one engine process and passes messages to it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from typing import Any, Literal

import msgspec
from ray import serve
from ray.util import get_current_placement_group

from cluster.codec import DEFAULT_BUILDER, encode
from cluster.engine_client import EngineClient, EngineDiedError
from cluster.logs import configure_logging
from cluster.resources import cpus_per_rank, on_gpu, stage_bundles
from cluster.router.membership import BUS_ADDRESS
from cluster.workers import RankWorkers, node_address
from replicas.config import EngineConfig

log = logging.getLogger(__name__)

PlacementStrategy = Literal["PACK", "STRICT_PACK", "SPREAD", "STRICT_SPREAD"]

STEP_SECONDS = 60.0  # longer than any step: a large prefill on a slow CPU takes its time
TELL_SECONDS = 0.5
HEALTH_PERIOD_SECONDS = 2.0
HEALTH_TIMEOUT_SECONDS = 5.0
DRAIN_SECONDS = 60.0
QUEUE_FACTOR = 8


class ReplicaSpec(msgspec.Struct, frozen=True):
    """What a replica runs. `builder` and `options` are those of `cluster.codec.EngineSpec`. The bus and the ranks meet
    at `bus_host`, by default the address by which the cluster knows the replica's node."""

    model_path: str
    config: EngineConfig
    builder: str = DEFAULT_BUILDER
    options: dict[str, float] = {}
    bus_host: str = ""


class Replica:
    """Its event loop does almost nothing: bytes in, bytes out. The tokens take the bus."""

    async def __init__(self, spec: ReplicaSpec) -> None:  # type: ignore[misc]  # Serve awaits it
        configure_logging()
        host = spec.bus_host or await asyncio.to_thread(node_address)
        group = get_current_placement_group()
        self._workers = RankWorkers(spec.config, group) if group is not None else None
        self._engine = await EngineClient.start(
            spec.model_path,
            spec.config,
            host,
            spec.builder,
            spec.options,
            self._workers.start if self._workers is not None else None,
        )
        self._closing = False
        self._vigils = asyncio.create_task(self._end_with_engine()), asyncio.create_task(self._watch_steps())

    async def info(self) -> bytes:
        ranks = self._workers.reports if self._workers is not None else ()
        return encode(msgspec.structs.replace(self._engine.info, ranks=ranks))

    def record_replica_metadata(self) -> dict[str, str]:
        """What Serve tells everybody who holds a handle."""
        return {BUS_ADDRESS: self._engine.info.bus_address}

    async def submit(self, replica: str, request_id: str, submit: bytes) -> bytes:
        """The unary call: an encoded Submit, open until the request ends, for an encoded Answer. `replica` told
        `DirectedRouter` to bring it here."""
        return await self._engine.generate(request_id, submit)

    async def check(self) -> None:
        """Cross the engine's step loop."""
        await self._engine.ping(STEP_SECONDS)

    async def check_health(self) -> None:
        """That it answers is all that Serve needs to know: a replica ends with its engine. One that stands still is
        replaced within half a minute."""

    async def _watch_steps(self) -> None:
        """End an engine that does not step, so that whoever waits for it hears of it. A process that stands still is
        found much earlier, by its silence."""
        with contextlib.suppress(EngineDiedError):
            while True:
                try:
                    await self._engine.ping(STEP_SECONDS)
                except TimeoutError:
                    log.error("the engine has not stepped for %.0f s and is ended", STEP_SECONDS)
                    self._engine.kill()
                    return
                await asyncio.sleep(HEALTH_PERIOD_SECONDS)

    async def _end_with_engine(self) -> None:
        """A replica without its engine would fail every call at once, and so look idle: it ends too, as soon as its
        callers have been told. Serve sees the death of an actor at once."""
        await self._engine.died()
        if not self._closing:
            await asyncio.sleep(TELL_SECONDS)
            os._exit(1)

    async def __del__(self) -> None:
        self._closing = True
        with contextlib.suppress(AttributeError):  # the engine never started
            await self._engine.close()
        if self._workers is not None:
            self._workers.kill()


def replica_deployment(
    name: str, num_replicas: int, config: EngineConfig, strategy: PlacementStrategy = "PACK"
) -> serve.Deployment:
    """Serve lets a multiple of `max_running` wait at each replica, as many again in each gateway, and refuses more. A
    replica of several ranks gets a placement group with this strategy."""
    options: dict[str, Any] = {
        "ray_actor_options": {"num_cpus": cpus_per_rank(config), "num_gpus": int(on_gpu(config))}
    }
    if config.num_ranks > 1:
        options |= {"placement_group_bundles": stage_bundles(config), "placement_group_strategy": strategy}
    return serve.deployment(
        name=name,
        num_replicas=num_replicas,
        max_ongoing_requests=QUEUE_FACTOR * config.max_running,
        max_queued_requests=QUEUE_FACTOR * config.max_running,
        health_check_period_s=HEALTH_PERIOD_SECONDS,
        health_check_timeout_s=HEALTH_TIMEOUT_SECONDS,
        graceful_shutdown_timeout_s=DRAIN_SECONDS,
        graceful_shutdown_wait_loop_s=0.1,
        **options,
        request_router_config={"request_router_class": "cluster.router.serve_router:DirectedRouter"},
    )(Replica)
