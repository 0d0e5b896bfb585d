"""The Serve deployment that clients speak to."""

from __future__ import annotations

from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle

from cluster.bus_client import BusClient
from cluster.gateway.app import build_app
from cluster.gateway.service import GatewayService, GatewaySettings, ModelService
from cluster.serve_port import ServePort

MAX_ONGOING_REQUESTS = 10_000
DRAIN_SECONDS = 60.0


@serve.ingress()
class Gateway:
    """Up as soon as a replica of every model answers."""

    async def __init__(self, models: dict[str, DeploymentHandle[object]], settings: GatewaySettings) -> None:
        self._service = GatewayService(BusClient(), settings)
        for model_id, handle in models.items():
            self._service.models[model_id] = await ModelService.open(model_id, ServePort(handle))

    async def __serve_build_asgi_app__(self) -> Any:
        return build_app(self._service)

    async def __del__(self) -> None:
        self._service.close()


def gateway_deployment(num_replicas: int) -> serve.Deployment:
    return serve.deployment(
        name="gateway",
        num_replicas=num_replicas,
        max_ongoing_requests=MAX_ONGOING_REQUESTS,
        graceful_shutdown_timeout_s=DRAIN_SECONDS,
        graceful_shutdown_wait_loop_s=0.1,
        ray_actor_options={"num_cpus": 0},
    )(Gateway)
