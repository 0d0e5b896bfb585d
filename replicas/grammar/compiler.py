"""Grammars compiled beside the engine's step loop: in another process, awaited in threads, kept for later requests."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from replicas.grammar.compile_channel import COMPILED, receive, send
from replicas.grammar.matcher import Matcher
from replicas.grammar.source import GrammarError
from replicas.grammar.tokens import GrammarTokens, TokenSpec
from replicas.sampling.grammar_spec import Grammar

if TYPE_CHECKING:
    from xgrammar import CompiledGrammar

log = logging.getLogger(__name__)

THREADS = 2
COMPILE_SECONDS = 10.0
START_SECONDS = 120.0
CACHE_BYTES = 256 * 1024**2
CACHE_ENTRIES = 1024


@dataclass(slots=True)
class Compilation:
    """A grammar that is being compiled, or was; `waiting` requests wait for it."""

    result: Future[CompiledGrammar]
    waiting: int = 0
    connections: list[socket.socket] = field(default_factory=list)


class GrammarCompiler:
    """Grammars of one model, each within so many seconds. The other process starts with the first. Thread-safe."""

    def __init__(self, spec: TokenSpec, seconds: float = COMPILE_SECONDS) -> None:
        self._spec = spec
        self._seconds = seconds
        self._threads = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="grammar")
        self._known: OrderedDict[tuple[str, str], Compilation] = OrderedDict()
        self._lock = threading.Lock()
        self._server: _Server | None = None
        self._tokens: GrammarTokens | None = None

    @property
    def tokens(self) -> GrammarTokens:
        """The model's vocabulary, read when it is first needed."""
        if self._tokens is None:
            self._tokens = GrammarTokens(self._spec)
        return self._tokens

    def compile(self, grammar: Grammar) -> Future[CompiledGrammar]:
        """Its result raises GrammarError for what cannot be compiled. Who no longer waits must call `leave`."""
        key = grammar.kind, grammar.text
        with self._lock:
            known = self._known.get(key)
            if known is None:
                known = self._known[key] = Compilation(Future())
                self._threads.submit(self._run, key, known)
            self._known.move_to_end(key)
            known.waiting += 1
            return known.result

    def leave(self, grammar: Grammar) -> None:
        """A request no longer waits for its grammar. With the last one the work on it ends."""
        key = grammar.kind, grammar.text
        with self._lock:
            known = self._known.get(key)
            if known is None:
                return
            known.waiting -= 1
            if known.waiting > 0 or known.result.done():
                return
            del self._known[key]
            known.result.cancel()
            for connection in known.connections:
                connection.shutdown(socket.SHUT_RDWR)

    def matcher(self, compiled: CompiledGrammar, after: Sequence[int] = ()) -> Matcher:
        """For one request, whose constraint begins behind the tokens `after`."""
        token_bytes = self.tokens.token_bytes
        begin = b"".join(token_bytes[token_id] for token_id in after)
        return Matcher(compiled, begin, token_bytes, self._spec.eos_token_ids)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            for known in self._known.values():
                for connection in known.connections:
                    connection.shutdown(socket.SHUT_RDWR)
            if self._server is not None:
                self._server.close()

    def _run(self, key: tuple[str, str], known: Compilation) -> None:
        if known.result.cancelled():
            return
        try:
            compiled = self._compiled(Grammar(key[0], key[1]), known)  # type: ignore[arg-type]  # a kind, as it came
        except GrammarError as error:
            self._settle(known, error)
        except Exception as error:
            log.exception("a grammar could not be compiled")
            with self._lock:
                self._known.pop(key, None)  # the next request may have better luck
            self._settle(known, GrammarError(f"it could not be compiled: {error}"))
        else:
            self._settle(known, compiled)
            self._evict()

    def _settle(self, known: Compilation, outcome: CompiledGrammar | GrammarError) -> None:
        with self._lock:
            if known.result.cancelled():
                return
            known.result.set_running_or_notify_cancel()
        if isinstance(outcome, GrammarError):
            known.result.set_exception(outcome)
        else:
            known.result.set_result(outcome)

    def _compiled(self, grammar: Grammar, known: Compilation) -> CompiledGrammar:
        spelled = self.tokens.spelled_in(grammar)
        with self._lock:
            if self._server is None or not self._server.runs:
                self._server = _Server(self._spec, self._seconds)
            connection = self._server.connect()
            known.connections.append(connection)
        order = {"kind": grammar.kind, "text": grammar.text, "spelled": spelled}
        with connection:
            try:
                send(connection, json.dumps(order).encode())
                answer = receive(connection)
            except OSError:
                raise GrammarError("it takes too much time or memory to compile") from None
            finally:
                with self._lock:
                    known.connections.remove(connection)
        if answer[:1] != COMPILED:
            raise GrammarError(answer[1:].decode(errors="replace"))
        from xgrammar import CompiledGrammar

        return CompiledGrammar.deserialize_json(answer[1:].decode(), self.tokens.info(spelled))

    def _evict(self) -> None:
        """Forget those that were used longest ago, of as many as are too many."""
        with self._lock:
            done = [key for key, known in self._known.items() if known.result.done()]
            sizes = {key: _size(self._known[key].result) for key in done}
            total = sum(sizes.values())
            while done and (total > CACHE_BYTES or len(self._known) > CACHE_ENTRIES):
                key = done.pop(0)
                total -= sizes[key]
                del self._known[key]


class _Server:
    """The compiling process. It inherits the socket that it listens on: connections may come before it is up."""

    def __init__(self, spec: TokenSpec, seconds: float) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind("")  # Linux finds a name that nobody has
        self._listener.listen(64)
        self._address = self._listener.getsockname()
        self._listener.set_inheritable(True)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "replicas.grammar.compile_server", str(self._listener.fileno())],
            stdin=subprocess.PIPE,
            pass_fds=[self._listener.fileno()],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        self._listener.close()
        assert self._process.stdin is not None
        with self._process.stdin as pipe:
            pipe.write(json.dumps(asdict(spec) | {"parent": os.getpid(), "seconds": seconds}).encode())

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(START_SECONDS)
        connection.connect(self._address)
        return connection

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def _size(result: Future[CompiledGrammar]) -> int:
    return 0 if result.cancelled() or result.exception() is not None else result.result().memory_size_bytes
