"""The replica's handle on its engine process: start it, ask it, notice its death, end it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from typing import Any, TypeVar

import msgspec
import zmq
import zmq.asyncio

from cluster.codec import (
    DEFAULT_BUILDER,
    Abort,
    EngineInfo,
    EngineSpec,
    Ping,
    Pong,
    RanksWanted,
    Ready,
    Shutdown,
    StartFailed,
    decode_control,
    encode,
)
from replicas.config import EngineConfig
from replicas.messages import LoadReport

log = logging.getLogger(__name__)

Result = TypeVar("Result")
StartRanks = Callable[[tuple[bytes, ...]], Awaitable[None]]

SHUTDOWN_SECONDS = 3.0
SILENCE_SECONDS = 4.0


class EngineDiedError(RuntimeError):
    """The engine process is gone: whatever it was asked must be asked again elsewhere."""


class EngineStartError(ValueError):
    """The engine could not start, for a reason that people can act on."""


class EngineClient:
    """Use `await EngineClient.start(...)`. All calls belong to the event loop that started it."""

    def __init__(
        self, process: asyncio.subprocess.Process, control: zmq.asyncio.Socket, pulse: zmq.asyncio.Socket
    ) -> None:
        self.info: EngineInfo
        self._process = process
        self._control = control
        self._pulse = pulse
        self._answers: dict[bytes, asyncio.Future[bytes]] = {}
        self._pongs: dict[int, asyncio.Future[LoadReport]] = {}
        self._numbers = count()
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def start(
        cls,
        model_path: str,
        config: EngineConfig,
        bus_host: str,
        builder: str = DEFAULT_BUILDER,
        options: Mapping[str, float] | None = None,
        start_ranks: StartRanks | None = None,
    ) -> EngineClient:
        """Start an engine process (see `EngineSpec`) and wait until it can serve. `start_ranks` starts the engine's
        other ranks from their encoded specs; without it the engine does so itself. Raises EngineStartError with the
        engine's reason."""
        folder = tempfile.mkdtemp(prefix="mobula-")
        control, control_address = _bind(zmq.PAIR, folder, "control")
        pulse, pulse_address = _bind(zmq.PULL, folder, "pulse")
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "cluster.engine_process",
            stdin=asyncio.subprocess.PIPE,
            env=os.environ | thread_environment(config.threads),
        )
        assert process.stdin is not None
        spec = EngineSpec(
            model_path=model_path,
            config=config,
            parent=os.getpid(),
            control_address=control_address,
            pulse_address=pulse_address,
            bus_host=bus_host,
            builder=builder,
            options=dict(options or {}),
            ranks_by_replica=start_ranks is not None and config.num_ranks > 1,
        )
        process.stdin.write(msgspec.json.encode(spec) + b"\n")
        client = cls(process, control, pulse)
        try:
            client.info = await client._await_ready(start_ranks)
            await pulse.recv()
        except BaseException:
            await client.close()
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)  # both sockets are connected, or never will be
        duties = client._receive(), client._watch(), client._listen()
        client._tasks = [asyncio.create_task(duty) for duty in duties]
        return client

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    @property
    def pid(self) -> int:
        return self._process.pid

    async def generate(self, request_id: str, submit: bytes) -> bytes:
        """Pass on an encoded Submit and wait for its encoded Answer. Cancelling the call aborts the request."""
        self._require_alive()
        key = request_id.encode()
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._answers[key] = future
        try:
            await self._send(key, submit)
            return await future
        except asyncio.CancelledError:
            if self.alive:
                await self._send(b"", encode(Abort((request_id,))))
            raise
        finally:
            self._answers.pop(key, None)

    async def ping(self, timeout: float) -> LoadReport:
        """Cross the step loop. Raises TimeoutError if the engine does not step, EngineDiedError if it is gone."""
        self._require_alive()
        number = next(self._numbers)
        future: asyncio.Future[LoadReport] = asyncio.get_running_loop().create_future()
        self._pongs[number] = future
        try:
            await self._send(b"", encode(Ping(number)))
            return await asyncio.wait_for(future, timeout)
        finally:
            del self._pongs[number]

    def kill(self) -> None:
        """End the process at once, as when it has stopped answering."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def close(self) -> None:
        """Ask the process to end, then make it. Leaves nothing behind."""
        with contextlib.suppress(TimeoutError, EngineDiedError):
            if self.alive:
                await self._send(b"", encode(Shutdown()))
                await asyncio.wait_for(self._process.wait(), SHUTDOWN_SECONDS)
        if self.alive:
            self.kill()
            await self._process.wait()
        for task in self._tasks:
            task.cancel()
        self._control.close()
        self._pulse.close()

    async def died(self) -> None:
        """Return when the process has ended, for whatever reason, and its callers have been told."""
        await self._process.wait()
        await asyncio.sleep(0)

    async def _send(self, request_id: bytes, message: bytes) -> None:
        try:
            await self._control.send_multipart((request_id, message), zmq.NOBLOCK)
        except zmq.Again:
            raise EngineDiedError(f"the engine process {self.pid} no longer takes messages") from None

    def _require_alive(self) -> None:
        if not self.alive:
            raise EngineDiedError(f"the engine process {self.pid} has ended with status {self._process.returncode}")

    async def _await_ready(self, start_ranks: StartRanks | None) -> EngineInfo:
        died = asyncio.create_task(self._process.wait())
        try:
            while True:
                receive = asyncio.ensure_future(self._control.recv_multipart())
                await asyncio.wait({receive, died}, return_when=asyncio.FIRST_COMPLETED)
                if not receive.done():
                    receive.cancel()
                    raise EngineStartError(f"the engine process ended with status {died.result()} before it was ready")
                match decode_control(receive.result()[1]):
                    case RanksWanted(specs) if start_ranks is not None:
                        await start_ranks(specs)
                    case Ready(info):
                        return info
                    case StartFailed(message):
                        raise EngineStartError(message)
                    case other:
                        raise AssertionError(f"unexpected message at start {other!r}")
        finally:
            died.cancel()

    async def _receive(self) -> None:
        while True:
            request_id, payload = await self._control.recv_multipart()
            if request_id:
                _resolve(self._answers.get(request_id), payload)
            elif isinstance(message := decode_control(payload), Pong):
                _resolve(self._pongs.get(message.number), message.load)

    async def _listen(self) -> None:
        """End an engine process that has fallen silent, so that its death can be dealt with."""
        while True:
            if await self._pulse.poll(SILENCE_SECONDS * 1000) or await self._pulse.poll(0):
                await self._pulse.recv()
                continue
            log.error("the engine process %d has been silent for %.0f s and is ended", self.pid, SILENCE_SECONDS)
            self.kill()
            return

    async def _watch(self) -> None:
        status = await self._process.wait()
        error = EngineDiedError(f"the engine process {self.pid} has ended with status {status}")
        waiting: list[asyncio.Future[Any]] = [*self._answers.values(), *self._pongs.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(error)


def thread_environment(threads: int) -> dict[str, str]:
    """How many threads the engine computes with: 0 takes every core this process may use. Threads that wait give
    their core up soon, as the gateway may need it (libgomp would spin for milliseconds)."""
    count = threads or len(os.sched_getaffinity(0))
    return {"OMP_NUM_THREADS": str(count), "GOMP_SPINCOUNT": "5000"}


def _bind(kind: int, folder: str, name: str) -> tuple[zmq.asyncio.Socket, str]:
    """A socket at an address that only this machine can reach."""
    endpoint = zmq.asyncio.Context.instance().socket(kind)
    endpoint.setsockopt(zmq.LINGER, 0)
    endpoint.setsockopt(zmq.SNDHWM, 0)
    address = f"ipc://{folder}/{name}"
    endpoint.bind(address)
    return endpoint, address


def _resolve(future: asyncio.Future[Result] | None, result: Result) -> None:
    if future is not None and not future.done():
        future.set_result(result)
