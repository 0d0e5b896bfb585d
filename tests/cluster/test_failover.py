"""Replicas die, stand still, drain and are replaced under streams; no client notices more than a pause.

`make soak` sets MOBULA_SOAK to the number of faults; otherwise there is one of each kind.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal

import pytest

from tests.support.chaos import all_ready, answers, chaos_bodies, engines, load
from tests.support.checkpoints import write_tiny_with_small_vocabulary
from tests.support.deployed import configuration
from tests.support.processes import free_port, parent_of

pytestmark = pytest.mark.slow

KINDS = [
    (signal.SIGKILL, "engine"),
    (signal.SIGKILL, "replica"),
    (signal.SIGSTOP, "engine"),
    (signal.SIGSTOP, "replica"),
]


@pytest.fixture(scope="module")
def deploy(serve_cluster, tmp_path_factory):
    """Deploys the application, or changes the options of its replicas in place."""
    checkpoint = write_tiny_with_small_vocabulary(tmp_path_factory.mktemp("tiny"))
    args = {"checkpoint": str(checkpoint), "port": free_port()}
    client = serve_cluster.context._get_global_client()

    def change(blocking: bool = False, version: int = 0, **options) -> str:
        client.deploy_apps(configuration("failover", args | {"version": version}, **options), _blocking=blocking)
        return f"http://127.0.0.1:{args['port']}"

    yield change
    serve_cluster.delete("failover")


@pytest.fixture(scope="module")
def url(deploy):
    return deploy(blocking=True, num_replicas=3)


@pytest.fixture(scope="module")
def bodies():
    return chaos_bodies()


@pytest.fixture(scope="module")
def undisturbed(url, bodies):
    return answers(url, bodies)


async def test_no_stream_is_lost_when_replicas_die_or_stand_still(url, bodies, undisturbed):
    async with load(url, bodies, undisturbed):
        for index in range(int(os.environ.get("MOBULA_SOAK", len(KINDS)))):
            await all_ready(url, 3)
            await asyncio.sleep(1.5)
            sort, target = KINDS[index % len(KINDS)]
            engine = random.choice(engines())
            os.kill(engine if target == "engine" else parent_of(engine), sort)
            await all_ready(url, 3, but=frozenset([engine]))


async def test_no_stream_is_cut_when_replicas_come_and_go(url, deploy, bodies, undisturbed):
    async with load(url, bodies, undisturbed):
        deploy(num_replicas=1)
        await all_ready(url, 1)
        deploy(num_replicas=3)
        await all_ready(url, 3)


async def test_no_stream_is_cut_by_a_rolling_update_of_the_gateway_and_all_replicas(url, deploy, bodies, undisturbed):
    old = frozenset(engines())
    async with load(url, bodies, undisturbed):
        deploy(num_replicas=3, version=1)
        await all_ready(url, 3, but=old)
        await asyncio.sleep(5)
