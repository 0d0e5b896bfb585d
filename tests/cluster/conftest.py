"""One Ray cluster for all tests that need one."""

from __future__ import annotations

import os

import pytest

from cluster.ingress import Ingress


@pytest.fixture(scope="session")
def serve_cluster():
    """Ray and Serve as `mobula serve` starts them, with quick timings; yields `ray.serve`."""
    os.environ.update(Ingress("gateway", "127.0.0.1", 0).environment())
    os.environ["RAY_SERVE_CONTROL_LOOP_INTERVAL_S"] = "0.05"
    import ray
    from ray import serve

    from deploy.serve import SERVE_LOGGING, start_ray

    start_ray("127.0.0.1", num_cpus=8)
    serve.start(proxy_location="Disabled", logging_config=SERVE_LOGGING)
    yield serve
    ray.shutdown()
