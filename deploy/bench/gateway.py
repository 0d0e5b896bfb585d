"""`mobula bench gateway`: what HTTP, gateway, Serve handle and bus add to an engine, in each HTTP mode.

The engine's steps sleep for a fixed time. Added latency is the time to first token at concurrency 1 over that of the
same engine called in-process; throughput is streamed tokens per second at concurrency 64, one token a step and
request, detokenized and checked against stop strings, once with an event for each token and once with the tokens that
wait together sharing one.
"""

from __future__ import annotations

import json
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import uvloop

from cluster.ingress import IngressMode
from deploy.bench.gateway_server import MODEL
from deploy.bench.serve.dialect import Dialect
from deploy.bench.serve.generator import Run, closed_loop
from deploy.bench.serve.outcome import ttfts
from deploy.bench.serve.target import Address, Target
from deploy.bench.serve.workload import Conversation, Piece, Turn
from deploy.bench.sleeping import build_sleeping_engine
from replicas.config import EngineConfig
from replicas.messages import GenerateRequest
from replicas.sampling.params import SamplingParams

MODES: tuple[IngressMode, ...] = ("gateway", "haproxy", "direct", "proxy")
LATENCY_STEP = 0.010
LATENCY_REQUESTS = 200
THROUGHPUT_CONCURRENCY = 64
THROUGHPUT_STEP = 0.0005
THROUGHPUT_TOKENS = 3000
PROMPT_TOKENS = 16
EXTRA = {"ignore_eos": True, "stop": ["a text that never comes", "\n\n\n\n\n\n"]}
TIMEOUT = 60.0


@dataclass(frozen=True, slots=True)
class ModeResult:
    """Latencies in milliseconds, rates in tokens a second."""

    mode: str
    added_ttft_p50_ms: float
    added_ttft_p99_ms: float
    tokens_per_second: float
    tokens_per_second_shared: float
    tokens_per_event_shared: float


def measure(model_path: Path, modes: Sequence[IngressMode] = MODES) -> list[ModeResult]:
    """Start each mode in turn and measure it. `model_path` lends the tokenizer."""
    bare = bare_engine_ttft()
    results = []
    for mode in modes:
        with _server(mode, model_path) as (port, configure):
            configure(LATENCY_STEP, False)
            _run_load(port, 1, 20, 1)
            alone = sorted(seen - bare for seen in ttfts(_run_load(port, 1, LATENCY_REQUESTS, 1).outcomes))
            configure(THROUGHPUT_STEP, False)
            each = _throughput(port)
            configure(THROUGHPUT_STEP, True)
            shared = _throughput(port)
        results.append(
            ModeResult(
                mode=mode,
                added_ttft_p50_ms=statistics.median(alone) * 1e3,
                added_ttft_p99_ms=alone[int(len(alone) * 0.99)] * 1e3,
                tokens_per_second=_tokens(each) / each.seconds,
                tokens_per_second_shared=_tokens(shared) / shared.seconds,
                tokens_per_event_shared=_tokens(shared) / sum(len(outcome.events) for outcome in shared.outcomes),
            )
        )
    return results


def bare_engine_ttft() -> float:
    """Median seconds from `add` to the first token of the sleeping engine, called in this process."""
    engine = build_sleeping_engine("", EngineConfig(), lambda name, seconds: None, LATENCY_STEP)
    times = []
    for index in range(LATENCY_REQUESTS):
        started = time.perf_counter()
        engine.add(GenerateRequest(str(index), (1,) * 40, SamplingParams(max_tokens=1)))
        engine.step()
        times.append(time.perf_counter() - started)
        engine.step()
    return statistics.median(times)


def print_table(results: Sequence[ModeResult]) -> None:
    print(
        "| HTTP mode | added TTFT p50 / p99, ms | tokens/s, one event each | tokens/s, shared events | tokens/event |"
    )
    print("|---|---|---|---|---|")
    for row in results:
        print(
            f"| {row.mode} | {row.added_ttft_p50_ms:.1f} / {row.added_ttft_p99_ms:.1f} | {row.tokens_per_second:,.0f} "
            f"| {row.tokens_per_second_shared:,.0f} | {row.tokens_per_event_shared:.1f} |"
        )


def run(model_path: Path, modes: Sequence[IngressMode], json_file: Path | None, quiet: bool) -> None:
    """The command: measure, print the table, write the JSON."""
    results = measure(model_path, modes)
    if json_file is not None:
        json_file.write_text(json.dumps({"modes": [asdict(result) for result in results]}, indent=2))
    if not quiet:
        print_table(results)


def _throughput(port: int) -> Run:
    _run_load(port, THROUGHPUT_CONCURRENCY, 1, 50)
    return _run_load(port, THROUGHPUT_CONCURRENCY, 1, THROUGHPUT_TOKENS)


def _run_load(port: int, concurrency: int, requests: int, max_tokens: int) -> Run:
    """`concurrency` connections, each of which sends `requests` chats one after another."""
    chat = Conversation((Turn((Piece((0,), PROMPT_TOKENS),), max_tokens),))
    dialect = Dialect(MODEL, chat=True, ids=False, extra=EXTRA)

    async def drive() -> Run:
        target = Target(Address(f"http://127.0.0.1:{port}", None, TIMEOUT), dialect)
        return await closed_loop(target, [chat] * concurrency * requests, concurrency, lambda outcome: None)

    run = uvloop.run(drive())
    errors = {outcome.error for outcome in run.outcomes} - {None}
    if errors or _tokens(run) != concurrency * requests * max_tokens:
        raise RuntimeError(f"{_tokens(run)} tokens came, with the errors {errors}")
    return run


def _tokens(run: Run) -> int:
    return sum(outcome.output_tokens for outcome in run.outcomes)


@contextmanager
def _server(mode: IngressMode, model_path: Path) -> Iterator[tuple[int, Any]]:
    """A server process in one mode: its port, and a function that sets step time and event sharing."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "deploy.bench.gateway_server", mode, str(port), str(model_path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    server_input, server_output = process.stdin, process.stdout

    def configure(step_seconds: float, share_events: bool) -> None:
        server_input.write(json.dumps({"step_seconds": step_seconds, "share_events": share_events}) + "\n")
        server_input.flush()
        for line in server_output:
            if line == "ready\n":
                return
        raise RuntimeError(f"the server in mode {mode} ended with status {process.wait()}")

    try:
        yield port, configure
    finally:
        server_input.close()
        process.wait()
