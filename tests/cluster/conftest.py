"""One Ray cluster, of two virtual nodes, for all tests that need one."""

from __future__ import annotations

import os

import pytest

from cluster.ingress import Ingress

NODE = {"object_store_memory": 100 * 1024**2, "include_dashboard": False}


@pytest.fixture(scope="session")
def ray_nodes():
    """A Ray cluster with quick timings, to which nodes can be added. The second has room for one stage of two ranks."""
    os.environ.update(Ingress("gateway", "127.0.0.1", 0).environment())
    os.environ["RAY_SERVE_CONTROL_LOOP_INTERVAL_S"] = "0.05"
    import ray
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 6, **NODE})
    nodes.add_node(num_cpus=2, object_store_memory=NODE["object_store_memory"])
    ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")
    yield nodes
    ray.shutdown()
    nodes.shutdown()


@pytest.fixture(scope="session")
def serve_cluster(ray_nodes):
    """Serve on that cluster; yields `ray.serve`."""
    from ray import serve

    from deploy.serve import SERVE_LOGGING

    serve.start(proxy_location="Disabled", logging_config=SERVE_LOGGING)
    return serve
