"""Replicas die, stand still, drain and are replaced under streams; no client notices more than a pause.

`make soak` sets MOBULA_SOAK to the number of faults; otherwise there is one of each kind.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import time
from contextlib import asynccontextmanager

import httpx
import pytest

from tests.support.chaos import Client, stream_until
from tests.support.checkpoints import write_tiny_with_small_vocabulary
from tests.support.deployed import configuration
from tests.support.processes import parent_of, ray_processes
from tests.support.sse import complete

pytestmark = pytest.mark.slow

CLIENTS = 20
STALL_SECONDS = 3.0
READY_SECONDS = 90
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
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    args = {"checkpoint": str(checkpoint), "port": port}
    client = serve_cluster.context._get_global_client()

    def change(blocking: bool = False, version: int = 0, **options) -> str:
        client.deploy_apps(configuration("failover", args | {"version": version}, **options), _blocking=blocking)
        return f"http://127.0.0.1:{port}"

    yield change
    serve_cluster.delete("failover")


@pytest.fixture(scope="module")
def url(deploy):
    return deploy(blocking=True, num_replicas=3)


@pytest.fixture(scope="module")
def bodies():
    """Greedy and seeded requests, with and without stop strings, that share beginnings or do not."""
    common = {"model": "tiny", "ignore_eos": True}
    prompts = ["Rays travel in schools", "Rays travel in schools of thousands", "A quite different text " * 6]
    greedy = [{"prompt": prompt, "temperature": 0, "max_tokens": 400} for prompt in prompts]
    seeded = [{"prompt": prompt, "seed": 7, "temperature": 0.9, "max_tokens": 600} for prompt in prompts]
    stopped = [body | {"stop": ["zz", " the"], "seed": 9, "max_tokens": 300} for body in seeded]
    return [common | body for body in greedy + seeded + stopped]


@pytest.fixture(scope="module")
def undisturbed(url, bodies):
    with httpx.Client(base_url=url, timeout=60) as http:
        choices = [complete(http, body)["choices"][0] for body in bodies]
    return [(choice["text"], choice["finish_reason"]) for choice in choices]


def engines() -> list[int]:
    return ray_processes("-m cluster.engine_process")


async def all_ready(url: str, replicas: int, but: frozenset[int] = frozenset()) -> None:
    """Wait until exactly so many replicas live and take requests, none of them with an engine process of `but`."""
    deadline = time.monotonic() + READY_SECONDS
    async with httpx.AsyncClient(base_url=url, timeout=30) as http:
        while True:
            lines = (await http.get("/metrics")).text.splitlines()
            known = sum(float(line.split()[-1]) for line in lines if line.startswith("mobula_replicas_open{"))
            if known == replicas == len(pids := engines()) and but.isdisjoint(pids):
                return
            assert time.monotonic() < deadline, f"{known:.0f} replicas take requests, not {replicas}"
            await asyncio.sleep(0.2)


@asynccontextmanager
async def load(url, bodies, undisturbed):
    """Streams before, during and after what happens inside; in the end every one of them has come out right."""
    stop = asyncio.Event()
    streams = asyncio.create_task(stream_until(url, bodies, CLIENTS, stop))
    try:
        await asyncio.sleep(2)
        yield
        await asyncio.sleep(2)
    finally:
        stop.set()
        clients = await streams
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    print(*(line for line in lines if line.startswith("mobula_failovers_total")), sep="\n")
    check(clients, undisturbed)


def check(clients: list[Client], undisturbed: list[tuple[str, str]]) -> None:
    faults = [fault for client in clients for fault in client.faults]
    assert not faults, f"{len(faults)} faults, such as {faults[:3]}"
    answers = [answer for client in clients for answer in client.answers]
    wrong = [which for which, text, reason in answers if (text, reason) != undisturbed[which]]
    assert not wrong, f"{len(wrong)} of {len(answers)} answers differ from the undisturbed ones"
    stalls = sorted(stall for client in clients for stall in client.stalls)
    p99 = stalls[int(len(stalls) * 0.99)]
    print(f"{len(answers)} answers, longest stall p99 {p99:.2f} s, worst {stalls[-1]:.2f} s")
    assert p99 <= STALL_SECONDS


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
