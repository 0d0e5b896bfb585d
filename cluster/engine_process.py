"""The process an engine lives in: inbox, step, publish, and again.

It is a process of its own because a thread stuck in a collective can be neither killed nor waited for, and because
it would share the interpreter lock with the replica's event loop. Start it with `EngineClient`.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import sys
import threading
import time
import traceback
import uuid
from collections import OrderedDict, defaultdict
from functools import partial
from importlib import import_module
from typing import Any

import msgspec
import zmq

from cluster.bus import HEARTBEAT_SECONDS, BusServer
from cluster.codec import (
    Abort,
    Answer,
    EngineInfo,
    EngineSpec,
    Finished,
    Ping,
    Pong,
    Ready,
    Refused,
    Shutdown,
    StartFailed,
    Stranger,
    Submit,
    ToEngine,
    TokenRow,
    decode_to_engine,
    encode,
)
from cluster.grammar_queue import GrammarQueue
from cluster.logs import configure_logging
from replicas.engine import Engine
from replicas.grammar.compiler import GrammarCompiler
from replicas.grammar.matcher import Matcher
from replicas.grammar.source import GrammarError
from replicas.grammar.tokens import TokenSpec
from replicas.messages import GenerateRequest, RequestSummary, StepOutput

log = logging.getLogger(__name__)

MAX_EARLY_ABORTS = 10_000
PULSE_SECONDS = 0.5
EXIT_ORPHANED = 71


class Pulse(threading.Thread):
    """Tells the replica that this process runs, from a thread of its own: a long step does not silence it, SIGSTOP
    does. Whether the engine steps is another question, which `Ping` asks. A process without its parent ends."""

    def __init__(self, spec: EngineSpec) -> None:
        super().__init__(name="pulse", daemon=True)
        self._spec = spec
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(spec.pulse_address)

    def run(self) -> None:
        while os.getppid() == self._spec.parent:
            with contextlib.suppress(zmq.Again):
                self._socket.send(b"", zmq.NOBLOCK)
            time.sleep(PULSE_SECONDS)
        os._exit(EXIT_ORPHANED)  # the main thread may be loading a model, or in a step that never ends


class EngineLoop:
    """Joins one engine to the control channel and the bus."""

    def __init__(self, engine: Engine, control: zmq.Socket[bytes], bus: BusServer, grammars: GrammarQueue) -> None:
        self._engine = engine
        self._control = control
        self._bus = bus
        self._grammars = grammars
        self._gateway_of: dict[str, str] = {}
        self._early_aborts: OrderedDict[str, None] = OrderedDict()
        self._stopping = False
        engine.on_begin = self._begin

    def run(self) -> None:
        """Until told to stop."""
        poller = zmq.Poller()
        poller.register(self._control, zmq.POLLIN)
        poller.register(self._bus.socket, zmq.POLLIN)
        poller.register(self._grammars.wakes, zmq.POLLIN)
        while not self._stopping:
            poller.poll(0 if self._engine.has_work else int(HEARTBEAT_SECONDS * 1000))
            self._take_in()
            self._take_compiled()
            for gateway in self._bus.keep_alive(time.monotonic()):
                self._abort([name for name, owner in self._gateway_of.items() if owner == gateway])
            output = self._engine.step() if self._engine.has_work else StepOutput()
            now = time.monotonic()
            self._bus.note(output.kv_events)
            # The load goes out first: who has just got the last token of a request finds it counted.
            self._bus.report(self._engine.load, self._engine.cached_keys, now, resting=self._engine.idle)
            self._publish(output)

    def close(self) -> None:
        self._bus.close()
        self._grammars.close()
        self._engine.close()

    def _take_in(self) -> None:
        self._abort(self._bus.receive(time.monotonic()))
        while True:
            try:
                request_id, payload = self._control.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                self._handle(decode_to_engine(payload))
            except msgspec.MsgspecError as error:  # from a gateway of another version
                log.error("a message of the control channel cannot be read: %s", error)
                self._answer(request_id.decode(), Refused("the request cannot be read by this version of the engine"))

    def _handle(self, message: ToEngine) -> None:
        match message:
            case Submit():
                self._submit(message)
            case Abort(request_ids):
                self._abort(request_ids)
            case Ping(number):
                self._control.send_multipart((b"", encode(Pong(number, self._engine.load()))))
            case Shutdown():
                self._stopping = True

    def _submit(self, message: Submit) -> None:
        request = message.request
        if not self._bus.knows(message.gateway):
            self._answer(request.request_id, Stranger(self._bus.address))
            return
        if request.request_id in self._gateway_of:
            self._answer(request.request_id, Refused(f"request_id {request.request_id!r} is already being served"))
            return
        self._gateway_of[request.request_id] = message.gateway
        self._bus.took(request.request_id)
        if request.sampling.grammar is None:
            self._add(request)
        else:
            self._grammars.put(request)
        if request.request_id in self._early_aborts:
            del self._early_aborts[request.request_id]
            self._abort((request.request_id,))

    def _take_compiled(self) -> None:
        for compiled in self._grammars.take():
            if isinstance(compiled.outcome, GrammarError):
                self._refuse(compiled.request, f"the constraint cannot be served: {compiled.outcome}")
            else:
                self._add(compiled.request, compiled.outcome)

    def _add(self, request: GenerateRequest, matcher: Matcher | None = None) -> None:
        try:
            self._engine.add(request, matcher)
        except ValueError as error:
            self._refuse(request, str(error))

    def _refuse(self, request: GenerateRequest, reason: str) -> None:
        del self._gateway_of[request.request_id]
        self._answer(request.request_id, Refused(reason))

    def _abort(self, request_ids: list[str] | tuple[str, ...]) -> None:
        """End requests. One that has not arrived yet is remembered, since the bus may overtake the unary call."""
        for request_id in request_ids:
            summary = self._engine.abort(request_id) or self._grammars.cancel(request_id)
            if summary is not None:
                self._finish(summary)
                continue
            self._early_aborts[request_id] = None
            if len(self._early_aborts) > MAX_EARLY_ABORTS:
                self._early_aborts.popitem(last=False)

    def _begin(self, requests: list[GenerateRequest]) -> None:
        request_ids: dict[str, list[str]] = defaultdict(list)
        for request in requests:
            request_ids[self._gateway_of[request.request_id]].append(request.request_id)
        self._bus.begin(request_ids)

    def _publish(self, output: StepOutput) -> None:
        rows: dict[str, list[TokenRow]] = defaultdict(list)
        for event in output.events:
            rows[self._gateway_of[event.request_id]].append(TokenRow.of(event))
        self._bus.publish(rows)
        for summary in output.finished:
            self._finish(summary)

    def _finish(self, summary: RequestSummary) -> None:
        del self._gateway_of[summary.request_id]
        self._answer(summary.request_id, Finished(summary))

    def _answer(self, request_id: str, answer: Answer) -> None:
        self._control.send_multipart((request_id.encode(), encode(answer)))


def start(spec: EngineSpec, control: zmq.Socket[bytes], context: zmq.Context[zmq.Socket[bytes]]) -> EngineLoop:
    """Build the engine and its bus, and say over the control channel that they are ready."""
    stages: list[tuple[str, float]] = []
    module, function = spec.builder.split(":")
    options: dict[str, Any] = dict(spec.options)
    if spec.ranks_by_replica:
        from cluster.replica_ranks import RanksOfReplica

        options |= {"host": spec.bus_host, "launch": partial(RanksOfReplica, control)}
    engine = getattr(import_module(module), function)(
        spec.model_path, spec.config, lambda name, seconds: stages.append((name, seconds)), **options
    )
    epoch = uuid.uuid4().hex
    bus = BusServer(context, spec.bus_host, epoch)
    gc.collect()
    gc.freeze()
    model = engine.model
    info = EngineInfo(
        epoch=epoch,
        bus_address=bus.address,
        model_path=spec.model_path,
        model_name=model.name,
        vocab_size=model.vocab_size,
        max_model_len=model.max_model_len,
        block_size=engine.config.block_size,
        num_blocks=model.num_blocks,
        max_running=engine.config.max_running,
        dtype=engine.config.dtype,
        stages=tuple(stages),
    )
    control.send_multipart((b"", encode(Ready(info))))
    compiler = GrammarCompiler(TokenSpec(spec.model_path, model.vocab_size, model.eos_token_ids))
    return EngineLoop(engine, control, bus, GrammarQueue(compiler))


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the replica's to hear; it sends Shutdown
    configure_logging()
    spec = msgspec.json.decode(sys.stdin.buffer.readline(), type=EngineSpec)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    control = context.socket(zmq.PAIR)
    control.setsockopt(zmq.LINGER, 1000)
    control.connect(spec.control_address)
    Pulse(spec).start()
    try:
        loop = start(spec, control, context)
    except Exception as error:  # whatever the reason, the replica must hear it
        traceback.print_exc()
        control.send_multipart((b"", encode(StartFailed(str(error) or repr(error)))))
        control.close()
        context.term()
        return 1
    loop.run()
    loop.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
