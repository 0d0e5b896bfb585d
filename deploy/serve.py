"""`mobula serve`: start Ray and the application in this terminal, say what happens, and end it all on Ctrl-C."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster.ingress import Ingress
from cluster.resources import check_fits, num_cpus
from deploy.config import MobulaConfig, to_engine_config
from deploy.errors import UserError

EXIT_INTERRUPTED = 130
LOOPBACK = "127.0.0.1"  # all processes are on this machine, and their talk stays there
OBJECT_STORE_BYTES = 128 * 1024**2  # nothing large passes through it
SERVE_LOGGING: dict[str, Any] = {"enable_access_log": False, "log_level": "WARNING"}


@dataclass(slots=True)
class StageClock:
    """Times the stages of a start and tells each as it ends."""

    quiet: bool
    started: float = field(default_factory=time.monotonic)
    stages: list[tuple[str, float]] = field(default_factory=list)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        begun = time.monotonic()
        yield
        self.tell(name, time.monotonic() - begun)

    def tell(self, name: str, seconds: float, indent: int = 0) -> None:
        self.stages.append((name, seconds))
        if not self.quiet:
            print(f"  {'  ' * indent}{name:<{34 - 2 * indent}}{seconds:6.1f} s", flush=True)

    @property
    def total(self) -> float:
        return time.monotonic() - self.started


def serve(config: MobulaConfig, paths: dict[str, Path], clock: StageClock, json_file: Path | None = None) -> None:
    """Serve until a signal says stop. `paths` says where each model's files lie, by model id."""
    gateway = config.gateway
    ingress = Ingress(gateway.ingress, gateway.host, gateway.port)
    os.environ.update(ingress.environment())
    _end_on_sigterm()
    with clock.stage("import Ray"):
        import ray
    ready = False
    try:
        _start(config, paths, ingress, clock)
        url = f"http://{reachable(gateway.host)}:{gateway.port}"
        _tell_ready(url, _example(_tell_engines(url, clock)), clock, json_file)
        ready = True
        threading.Event().wait()
    except KeyboardInterrupt:
        if not ready:
            sys.exit(EXIT_INTERRUPTED)
    finally:
        if not clock.quiet:
            print("Stopping ...", flush=True)
        ray.shutdown()  # the cluster is ours alone: everything in it ends, engine processes with their replicas


def _start(config: MobulaConfig, paths: dict[str, Path], ingress: Ingress, clock: StageClock) -> None:
    """Ray, Serve and the application, each a stage. Raises UserError if the application does not come up."""
    from ray import serve as ray_serve

    from deploy.app import APPLICATION_NAME, build_application

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    with clock.stage("start Ray"):
        start_ray(sum(model.replicas.min * num_cpus(to_engine_config(model)) for model in config.models))
    _end_on_sigterm()  # Ray has put its own handler there, which prints a stack
    _check_resources(config)
    with clock.stage("start Serve"):
        ray_serve.start(**ingress.serve_options(), logging_config=SERVE_LOGGING)
    with clock.stage("start the models and the gateway"):
        application = build_application(config, paths, ingress, LOOPBACK)
        try:
            ray_serve.run(application, name=APPLICATION_NAME, logging_config=SERVE_LOGGING)
        except RuntimeError as error:
            raise UserError(f"the application did not start: {_cause(APPLICATION_NAME) or error}") from error


def _end_on_sigterm() -> None:
    """As by Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def _check_resources(config: MobulaConfig) -> None:
    """Raise UserError for a model that this cluster's nodes cannot hold."""
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    for model in config.models:
        try:
            check_fits(nodes, model.id, to_engine_config(model), model.replicas.min)
        except ValueError as error:
            raise UserError(str(error)) from None


def reachable(host: str) -> str:
    """The address by which this machine reaches a server that listens on `host`, as it stands in a URL."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]" if ":" in host else host


def _cause(application: str) -> str:
    """What Serve says of a deployment that did not start: the last line of its traceback."""
    from ray import serve as ray_serve

    state = ray_serve.status().applications.get(application)
    messages = [deployment.message.strip() for deployment in state.deployments.values()] if state else []
    lines = [line for message in messages for line in message.splitlines() if "Error: " in line]
    return lines[-1].strip() if lines else " ".join(messages)


def _tell_engines(url: str, clock: StageClock) -> dict[str, Any]:
    """Where each model's start went, as the gateway heard it from a replica. Returns all that it says."""
    import httpx

    ready: dict[str, Any] = httpx.get(f"{url}/ready", timeout=30).raise_for_status().json()
    for model in [*ready["models"], *ready["embedding_models"]]:
        for name, seconds in model["start_seconds"].items():
            clock.tell(f"{model['id']}: {name}", seconds, indent=1)
        for rank in () if clock.quiet else model.get("ranks", ()):
            where = f"{rank['address']}, {rank['device']} over {rank['backend']}, torch {rank['torch_version']}"
            print(f"    {model['id']}: rank {rank['rank']} at {where}, {rank['free_memory'] / 2**30:.1f} GiB free")
    return ready


def _example(ready: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The path and the body of a request that can be tried."""
    if not ready["models"]:
        return "embeddings", {"model": ready["embedding_models"][0]["id"], "input": "Hello!"}
    messages = [{"role": "user", "content": "Hello!"}]
    return "chat/completions", {"model": ready["models"][0]["id"], "stream": True, "messages": messages}


def start_ray(num_cpus: int) -> None:
    """A cluster of this machine alone, with at least `num_cpus` logical CPUs."""
    import ray

    ray.init(
        address="local",
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=OBJECT_STORE_BYTES,
        num_cpus=max(num_cpus, os.cpu_count() or 1),
    )


def _tell_ready(url: str, example: tuple[str, dict[str, Any]], clock: StageClock, json_file: Path | None) -> None:
    if json_file is not None:
        stages = [{"name": name, "seconds": seconds} for name, seconds in clock.stages]
        json_file.write_text(json.dumps({"url": f"{url}/v1", "seconds": clock.total, "stages": stages}, indent=2))
    if clock.quiet:
        return
    path, body = example[0], json.dumps(example[1])
    print(f"\nReady after {clock.total:.1f} s at {url}/v1\n")
    print(f"  curl -N {url}/v1/{path} -H 'Content-Type: application/json' \\\n    -d '{body}'\n")
    print("Press Ctrl-C to stop.", flush=True)
