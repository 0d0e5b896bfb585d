"""The measured server of `mobula bench gateway`: Ray Serve in one HTTP mode, with engines that sleep.

A process of its own, since Ray Serve reads the HTTP mode from the environment at import. Each line on standard input
is a JSON object {"step_seconds", "share_events"}; it is answered by a line once the application runs that way.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Any

from cluster.ingress import Ingress

MODEL = "sleeping"
MAX_RUNNING = 256


def main() -> None:
    mode, port, model_path = sys.argv[1:]
    ingress = Ingress(mode, "127.0.0.1", int(port))  # type: ignore[arg-type]
    os.environ.update(ingress.environment())
    import ray
    from ray import serve

    from deploy.serve import SERVE_LOGGING, start_ray

    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    start_ray(num_cpus=1)
    try:
        serve.start(**ingress.serve_options(), logging_config=SERVE_LOGGING)
        for line in sys.stdin:
            application = _application(model_path, ingress, **json.loads(line))
            serve.run(application, name="bench", logging_config=SERVE_LOGGING)
            print("ready", flush=True)
    finally:
        ray.shutdown()


def _application(model_path: str, ingress: Ingress, step_seconds: float, share_events: bool) -> Any:
    from cluster.gateway.deployment import gateway_deployment
    from cluster.gateway.service import GatewaySettings
    from cluster.replica import ReplicaSpec, replica_deployment
    from deploy.serve import LOOPBACK
    from replicas.config import EngineConfig

    builder = "deploy.bench.sleeping:build_sleeping_engine"
    config = EngineConfig(max_running=MAX_RUNNING)
    spec = ReplicaSpec(model_path, config, builder, {"step_seconds": step_seconds}, LOOPBACK)
    handle = replica_deployment("model-sleeping", 1, config).bind(spec)
    return gateway_deployment(1).bind({MODEL: handle}, GatewaySettings(share_events=share_events), ingress)


if __name__ == "__main__":
    main()
