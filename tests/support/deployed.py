"""An application that Serve builds from a configuration, as `serve deploy` would: changes are applied in place."""

from __future__ import annotations

from typing import Any

from ray.serve import Application
from ray.serve.schema import ServeDeploySchema

from cluster.gateway.deployment import gateway_deployment
from cluster.gateway.service import GatewaySettings
from cluster.ingress import Ingress
from cluster.replica import ReplicaSpec, replica_deployment
from replicas.config import EngineConfig

TINY_ENGINE = EngineConfig(
    block_size=4, max_running=16, max_batched_tokens=128, kv_cache_memory=16 * 1024**2, threads=1
)
MOVE_AFTER = 1.0


def tiny_application(args: dict[str, Any]) -> Application:
    """`args`: the checkpoint and the gateway's port, and whether the gateway must be on the head node; anything else
    makes it another version."""
    ingress = Ingress("gateway", "127.0.0.1", int(args["port"]))
    replica = replica_deployment("model-tiny", 3, TINY_ENGINE).bind(ReplicaSpec(args["checkpoint"], TINY_ENGINE))
    gateway = gateway_deployment(2)
    if args.get("on_head"):
        gateway = gateway.options(ray_actor_options={"num_cpus": 0, "resources": {"node:__internal_head__": 0.001}})
    return gateway.bind({"tiny": replica}, GatewaySettings(move_after=MOVE_AFTER), ingress)


def configuration(name: str, args: dict[str, Any], **deployment: Any) -> ServeDeploySchema:
    """`deployment` overrides options of the model's replicas."""
    application = {
        "name": name,
        "route_prefix": "/",
        "import_path": "tests.support.deployed:tiny_application",
        "args": args,
        "deployments": [{"name": "model-tiny", **deployment}],
        "logging_config": {"enable_access_log": False, "log_level": "WARNING"},
    }
    return ServeDeploySchema(applications=[application])
