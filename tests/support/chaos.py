"""Streams under way while replicas die: what each client got, and how long it had to wait between two events."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

import httpx


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
