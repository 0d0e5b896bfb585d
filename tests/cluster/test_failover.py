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

import httpx
import pytest

from cluster.gateway.deployment import gateway_deployment
from cluster.gateway.service import GatewaySettings
from cluster.ingress import Ingress
from cluster.replica import ReplicaSpec, replica_deployment
from deploy.serve import SERVE_LOGGING
from replicas.config import EngineConfig
from tests.support.chaos import Client, stream_until
from tests.support.checkpoints import write_tiny_with_tokenizer
from tests.support.processes import parent_of, ray_processes
from tests.support.sse import complete

pytestmark = pytest.mark.slow

CONFIG = EngineConfig(block_size=4, max_running=16, max_batched_tokens=128, kv_cache_memory=16 * 1024**2, threads=1)
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
def checkpoint(tmp_path_factory, smollm2_path):
    return write_tiny_with_tokenizer(tmp_path_factory.mktemp("tiny"), smollm2_path)


def application(checkpoint, ingress, replicas, options=None):
    model = replica_deployment("model-tiny", replicas, CONFIG)
    settings = GatewaySettings(move_after=1.0)
    spec = ReplicaSpec(str(checkpoint), CONFIG, options=options or {})
    return gateway_deployment(1).bind({"tiny": model.bind(spec)}, settings, ingress)


@pytest.fixture(scope="module")
def ingress():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return Ingress("gateway", "127.0.0.1", probe.getsockname()[1])


@pytest.fixture(scope="module")
def url(serve_cluster, checkpoint, ingress):
    serve_cluster.run(application(checkpoint, ingress, 3), name="failover", logging_config=SERVE_LOGGING)
    yield f"http://127.0.0.1:{ingress.port}"
    serve_cluster.delete("failover")


@pytest.fixture(scope="module")
def bodies():
    """Greedy and seeded requests, with and without stop strings, that share beginnings or do not."""
    common = {"model": "tiny", "ignore_eos": True}
    prompts = ["Rays travel in schools", "Rays travel in schools of thousands", "A quite different text " * 6]
    greedy = [{"prompt": prompt, "temperature": 0, "max_tokens": 150} for prompt in prompts]
    seeded = [{"prompt": prompt, "seed": 7, "temperature": 0.9, "max_tokens": 200} for prompt in prompts]
    stopped = [body | {"stop": ["zz", " the"], "seed": 9, "max_tokens": 120} for body in seeded]
    return [common | body for body in greedy + seeded + stopped]


@pytest.fixture(scope="module")
def undisturbed(url, bodies):
    with httpx.Client(base_url=url, timeout=60) as http:
        choices = [complete(http, body)["choices"][0] for body in bodies]
    return [(choice["text"], choice["finish_reason"]) for choice in choices]


def engines() -> list[int]:
    return ray_processes("-m cluster.engine_process")


async def all_ready(url: str, replicas: int, but: int | None = None) -> None:
    """Wait until so many replicas take requests, none of them with the engine process `but`."""
    deadline = time.monotonic() + READY_SECONDS
    async with httpx.AsyncClient(base_url=url, timeout=30) as http:
        while True:
            lines = (await http.get("/metrics")).text.splitlines()
            known = sum((line.startswith("mobula_replicas_open{") and float(line.split()[-1])) or 0 for line in lines)
            if known == replicas == len(pids := engines()) and but not in pids:
                return
            assert time.monotonic() < deadline, f"{known:.0f} replicas take requests, not {replicas}"
            await asyncio.sleep(0.2)


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
    wanted = int(os.environ.get("MOBULA_SOAK", len(KINDS)))
    stop = asyncio.Event()
    load = asyncio.create_task(stream_until(url, bodies, CLIENTS, stop))
    try:
        for index in range(wanted):
            await all_ready(url, 3)
            await asyncio.sleep(1.5)
            sort, target = KINDS[index % len(KINDS)]
            engine = random.choice(engines())
            os.kill(engine if target == "engine" else parent_of(engine), sort)
            await all_ready(url, 3, but=engine)
        await asyncio.sleep(2)
    finally:
        stop.set()
        clients = await load
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    print(*(line for line in lines if line.startswith("mobula_failovers_total")), sep="\n")
    check(clients, undisturbed)
