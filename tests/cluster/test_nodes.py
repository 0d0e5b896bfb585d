"""Nodes leave the cluster, with and without notice, under streams."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.support.chaos import all_ready, answers, chaos_bodies, engines, load
from tests.support.checkpoints import write_tiny_with_small_vocabulary
from tests.support.deployed import configuration
from tests.support.processes import free_port

pytestmark = pytest.mark.slow

SPARE = {"num_cpus": 1, "resources": {"spare": 1}, "object_store_memory": 80 * 1024**2}


@pytest.fixture
def nodes(ray_nodes):
    """Three nodes with room for one replica each."""
    added = [ray_nodes.add_node(**SPARE) for _ in range(3)]
    yield added
    for node in added:
        if node in ray_nodes.worker_nodes:
            ray_nodes.remove_node(node)


@pytest.fixture
def url(nodes, serve_cluster, tmp_path):
    args = {"checkpoint": str(write_tiny_with_small_vocabulary(tmp_path)), "port": free_port(), "on_head": True}
    options = {"num_replicas": 2, "ray_actor_options": {"num_cpus": 0.1, "resources": {"spare": 1}}}
    client = serve_cluster.context._get_global_client()
    client.deploy_apps(configuration("nodes", args, **options), _blocking=True)
    yield f"http://127.0.0.1:{args['port']}"
    serve_cluster.delete("nodes")


def busy_node(nodes):
    """A node with a replica on it, which has taken what it has to spare."""
    from ray._private.state import available_resources_per_node

    available = available_resources_per_node()
    return next(node for node in nodes if available.get(node.node_id, {}).get("spare", 0) < 1)


async def test_a_node_that_is_to_be_taken_away_hands_its_streams_on(url, nodes, ray_nodes):
    """The notice that a spot machine gives, as the autoscaler passes it on to Ray."""
    bodies = chaos_bodies()
    undisturbed, old = answers(url, bodies), frozenset(engines())
    leaving = busy_node(nodes)
    async with load(url, bodies, undisturbed):
        notice = await asyncio.create_subprocess_exec(
            str(Path(sys.executable).with_name("ray")),
            "drain-node",
            f"--address={ray_nodes.address}",
            f"--node-id={leaving.node_id}",
            "--reason=DRAIN_NODE_REASON_PREEMPTION",
            "--reason-message=the spot machine is wanted elsewhere",
            "--deadline-remaining-seconds=30",
        )
        assert await notice.wait() == 0
        while old <= frozenset(engines()):
            await asyncio.sleep(0.2)
        ray_nodes.remove_node(leaving, allow_graceful=False)
        await all_ready(url, 2)
    assert len(old - frozenset(engines())) == 1


async def test_the_death_of_a_node_costs_no_stream(url, nodes, ray_nodes):
    bodies = chaos_bodies()
    undisturbed = answers(url, bodies)
    async with load(url, bodies, undisturbed):
        lost = busy_node(nodes)
        ray_nodes.remove_node(lost, allow_graceful=False)
        await asyncio.sleep(1)
        await all_ready(url, 2)
