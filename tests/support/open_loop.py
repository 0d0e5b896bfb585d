"""Load that does not wait for answers: `python -m tests.support.open_loop URL`, a process of its own.

Reads a JSON object a line, {"rate", "seconds", "body", "keys"}: so many requests per second at random moments, each on
a connection of its own. Answers with a line, a list of [key, status, second of its coming, seconds to the first byte of
the answer or of the first event, seconds to the end].
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

Outcome = tuple[str, int, float, float, float]


@dataclass(frozen=True)
class Outcomes:
    """What became of all requests of one load."""

    seconds: float
    all: list[Outcome]

    def goodput(self, ttft: float) -> float:
        """Requests per second that had their first token in time, as long as the load lasted."""
        served = [(came, first) for _, status, came, first, _ in self.all if status == 200]
        return sum(first <= ttft and came + first <= self.seconds for came, first in served) / self.seconds

    def refusal_seconds(self) -> list[float]:
        return sorted(end for _, status, _, _, end in self.all if status == 429)


class OpenLoop:
    """The process, as its parent sees it."""

    def __init__(self, url: str) -> None:
        command = [sys.executable, "-m", "tests.support.open_loop", url.removeprefix("http://")]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def offer(self, rate: float, seconds: float, body: dict[str, Any], keys: tuple[str, ...] = ("",)) -> Outcomes:
        self._process.stdin.write(json.dumps({"rate": rate, "seconds": seconds, "body": body, "keys": keys}) + "\n")
        self._process.stdin.flush()
        return Outcomes(seconds, [tuple(outcome) for outcome in json.loads(self._process.stdout.readline())])

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()


async def _request(host: str, port: int, key: str, came: float, raw: bytes) -> Outcome:
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nAuthorization: Bearer {key}\r\n\r\n"
    started = time.monotonic()
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(head.encode() + raw)
    status = int((await reader.readuntil(b"\r\n\r\n")).split(None, 2)[1])
    await reader.read(1)
    first = time.monotonic() - started
    await reader.read()
    writer.close()
    return key, status, came, first, time.monotonic() - started


async def _offer(host: str, port: int, rate: float, seconds: float, body: Any, keys: list[str]) -> list[Outcome]:
    rng, raw, tasks = random.Random(1), json.dumps(body).encode(), []
    start = due = time.monotonic()
    while due < start + seconds:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        tasks.append(asyncio.create_task(_request(host, port, rng.choice(keys), due - start, raw)))
        due += rng.expovariate(rate)
    return await asyncio.gather(*tasks)


def main() -> None:
    host, port = sys.argv[1].split(":")
    for line in sys.stdin:
        print(json.dumps(asyncio.run(_offer(host, int(port), **json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
