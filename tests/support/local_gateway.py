"""A gateway over one engine process, served by uvicorn in a thread of its own: real HTTP without Ray."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import uvicorn

from cluster.engine_client import EngineClient
from cluster.gateway.app import build_app
from cluster.gateway.service import GatewayService, GatewaySettings
from cluster.ingress import Ingress
from cluster.local_port import LocalPort
from replicas.config import EngineConfig


class LocalGateway:
    """What tests may touch: the address, the loop that everything runs on, the engine processes, the way to them."""

    url: str
    engines: list[EngineClient]
    port: LocalPort
    service: GatewayService
    loop: asyncio.AbstractEventLoop

    @property
    def engine(self) -> EngineClient:
        return self.engines[0]

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60)

    def load(self, place: int = 0):
        """An engine's load, fresh from its step loop."""
        return asyncio.run_coroutine_threadsafe(self.engines[place].ping(10), self.loop).result()

    def drain(self, place: int) -> None:
        """As when Serve has decided to stop a replica."""
        self.loop.call_soon_threadsafe(self.port.drain, f"local-{place}")


@contextmanager
def local_gateway(
    model_path: Path,
    config: EngineConfig,
    builder: str,
    model_id: str = "test",
    settings: GatewaySettings | None = None,
    engines: int = 1,
) -> Iterator[LocalGateway]:
    gateway, ready, failed = LocalGateway(), threading.Event(), []
    listener = Ingress("gateway", "127.0.0.1", 0).open_socket()
    assert listener is not None
    gateway.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = uvicorn.Server(uvicorn.Config(None, log_level="warning", access_log=False))

    async def run() -> None:
        gateway.loop = asyncio.get_running_loop()
        starts = (EngineClient.start(str(model_path), config, "127.0.0.1", builder) for _ in range(engines))
        gateway.engines = list(await asyncio.gather(*starts))
        gateway.port = LocalPort(*gateway.engines)
        gateway.service = GatewayService("127.0.0.1", settings or GatewaySettings())
        await gateway.service.open_model(model_id, gateway.port)
        while gateway.service.models[model_id].dispatcher.fleet.open_replicas < engines:
            await asyncio.sleep(0.01)
        server.config.app = build_app(gateway.service)
        ready.set()
        try:
            await server.serve([listener])
        finally:
            gateway.service.close()
            await asyncio.gather(*(engine.close() for engine in gateway.engines))

    def main() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:
            failed.append(error)
            ready.set()

    thread = threading.Thread(target=main)
    thread.start()
    ready.wait()
    if failed:
        raise failed[0]
    try:
        yield gateway
    finally:
        server.should_exit = True
        thread.join()
