"""The Serve deployment that clients speak to."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from typing import Any

import uvicorn
from ray import serve
from ray.serve.handle import DeploymentHandle

from cluster.embedding.serve_port import ServeEmbeddingPort
from cluster.gateway.app import build_app
from cluster.gateway.farewell import QUIET_SECONDS
from cluster.gateway.service import GatewayService, GatewaySettings
from cluster.ingress import Ingress
from cluster.logs import configure_logging
from cluster.serve_port import ServePort
from cluster.workers import node_address

MAX_ONGOING_REQUESTS = 100_000
DRAIN_SECONDS = 60.0
KEEP_ALIVE_SECONDS = 90


@serve.ingress()
class Gateway:
    """Up as soon as a replica of every model answers. The same application stands behind the gateway's own socket
    and behind Serve's ways in; `ingress` says which of them is open."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self,
        models: dict[str, DeploymentHandle[object]],
        settings: GatewaySettings,
        ingress: Ingress,
        embedders: dict[str, DeploymentHandle[object]] | None = None,
    ) -> None:
        configure_logging()
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None
        host = settings.bus_host or await asyncio.to_thread(node_address)
        self._service = GatewayService(host, settings)
        for model_id, handle in models.items():
            await self._service.open_model(model_id, ServePort(handle))
        for model_id, handle in (embedders or {}).items():
            await self._service.open_embedder(model_id, ServeEmbeddingPort(handle))
        self._app = build_app(self._service)
        gc.collect()
        gc.freeze()  # what is there from the start is no garbage, and looking through it would hold up every stream
        if (listener := ingress.open_socket()) is not None:
            config = uvicorn.Config(
                self._app, lifespan="off", access_log=False, log_config=None, timeout_keep_alive=KEEP_ALIVE_SECONDS
            )
            self._server = uvicorn.Server(config)
            self._serving = asyncio.create_task(self._server.serve([listener]))

    async def __serve_build_asgi_app__(self) -> Any:
        return self._app

    async def check_health(self) -> None:
        """Serve replaces this gateway when this raises."""
        if self._serving is not None and self._serving.done():
            raise RuntimeError("the gateway's HTTP server has ended")

    async def __del__(self) -> None:
        """Take no new connections, let the open streams end, and send their clients to other gateways."""
        if self._server is not None and self._serving is not None:
            for listener in self._server.servers:
                listener.close()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._service.farewell.wait_for_quiet(), DRAIN_SECONDS)
            self._server.should_exit = True
            await self._serving
        self._service.close()


def gateway_deployment(num_replicas: int) -> serve.Deployment:
    """In an update a new gateway is up before the old one leaves."""
    return serve.deployment(
        name="gateway",
        max_surge_percent=100,
        num_replicas=num_replicas,
        max_ongoing_requests=MAX_ONGOING_REQUESTS,
        graceful_shutdown_timeout_s=DRAIN_SECONDS + QUIET_SECONDS,
        graceful_shutdown_wait_loop_s=0.1,
        ray_actor_options={"num_cpus": 0},
    )(Gateway)
