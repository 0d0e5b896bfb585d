"""Streams under way while replicas die: what each client got, and how long it had to wait between two events."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.support.processes import ray_processes
from tests.support.sse import complete

CLIENTS = 20
STALL_SECONDS = 3.0
READY_SECONDS = 90

Answer = tuple[str, str]


@dataclass
class Client:
    """One client's answers: the texts of its streams, each with its finish reason, and every fault that it saw."""

    answers: list[tuple[int, str, str]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    stalls: list[float] = field(default_factory=list)


async def read_one(http: httpx.AsyncClient, body: dict[str, Any]) -> tuple[str, str | None, float, str | None]:
    """Text, finish reason, longest wait between two events in seconds, and the fault if there was one."""
    text, reason, longest, done = "", None, 0.0, False
    last: float | None = None
    async with http.stream("POST", "/v1/completions", json=body | {"stream": True}) as response:
        if response.status_code != 200:
            return "", None, 0.0, f"status {response.status_code}: {(await response.aread())[:200]!r}"
        async for line in response.aiter_lines():
            if not line:
                continue
            now = time.monotonic()
            longest = max(longest, now - last) if last is not None else 0.0
            last = now
            data = line.removeprefix("data: ")
            if data == "[DONE]":
                done = True
                continue
            event = json.loads(data)
            if "error" in event:
                return text, reason, longest, f"error event {event['error']}"
            for choice in event["choices"]:
                text += choice["text"]
                reason = choice["finish_reason"] or reason
    return text, reason, longest, None if done and reason else f"the stream ended without an end after {text[-40:]!r}"


async def stream_until(url: str, bodies: list[dict[str, Any]], clients: int, stop: asyncio.Event) -> list[Client]:
    """`clients` clients that ask for `bodies` over and over, each beginning with another one, until told to stop."""
    limits = httpx.Limits(max_connections=clients)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as http:

        async def run(client: Client, index: int) -> None:
            while not stop.is_set():
                which = index % len(bodies)
                index += 7
                try:
                    text, reason, stall, fault = await read_one(http, bodies[which])
                except httpx.HTTPError as error:
                    client.faults.append(repr(error))
                    continue
                client.stalls.append(stall)
                if fault is not None:
                    client.faults.append(fault)
                else:
                    client.answers.append((which, text, reason or ""))

        found = [Client() for _ in range(clients)]
        await asyncio.gather(*(run(client, index) for index, client in enumerate(found)))
        return found


def chaos_bodies() -> list[dict[str, Any]]:
    """Greedy and seeded requests, with and without stop strings, that share beginnings or do not."""
    common = {"model": "tiny", "ignore_eos": True}
    prompts = ["Rays travel in schools", "Rays travel in schools of thousands", "A quite different text " * 6]
    greedy = [{"prompt": prompt, "temperature": 0, "max_tokens": 400} for prompt in prompts]
    seeded = [{"prompt": prompt, "seed": 7, "temperature": 0.9, "max_tokens": 600} for prompt in prompts]
    stopped = [body | {"stop": ["zz", " the"], "seed": 9, "max_tokens": 300} for body in seeded]
    return [common | body for body in greedy + seeded + stopped]


def answers(url: str, bodies: list[dict[str, Any]]) -> list[Answer]:
    """What an undisturbed server says to each, with the reason why it ends."""
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
async def load(url: str, bodies: list[dict[str, Any]], undisturbed: list[Answer]) -> AsyncIterator[None]:
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


def check(clients: list[Client], undisturbed: list[Answer]) -> None:
    faults = [fault for client in clients for fault in client.faults]
    assert not faults, f"{len(faults)} faults, such as {faults[:3]}"
    found = [answer for client in clients for answer in client.answers]
    wrong = [which for which, text, reason in found if (text, reason) != undisturbed[which]]
    assert not wrong, f"{len(wrong)} of {len(found)} answers differ from the undisturbed ones"
    stalls = sorted(stall for client in clients for stall in client.stalls)
    p99 = stalls[int(len(stalls) * 0.99)]
    print(f"{len(found)} answers, longest stall p99 {p99:.2f} s, worst {stalls[-1]:.2f} s")
    assert p99 <= STALL_SECONDS
