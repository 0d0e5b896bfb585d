"""Constrained requests on their way into an engine: each waits until its grammar is compiled, and the engine goes on
stepping meanwhile."""

from __future__ import annotations

import socket
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from replicas.grammar.compiler import GrammarCompiler
from replicas.grammar.matcher import Matcher
from replicas.grammar.source import GrammarError
from replicas.messages import GenerateRequest, RequestSummary

if TYPE_CHECKING:
    from concurrent.futures import Future

    from xgrammar import CompiledGrammar


@dataclass(frozen=True, slots=True)
class Compiled:
    """A request, and the matcher for its grammar or why there can be none."""

    request: GenerateRequest
    outcome: Matcher | GrammarError


class GrammarQueue:
    """Belongs to the engine's thread; `wakes` becomes readable when `take` would give something."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        self._compiler = compiler
        self._waiting: dict[str, tuple[GenerateRequest, Future[CompiledGrammar]]] = {}
        self._done: deque[str] = deque()
        self.wakes, self._waker = socket.socketpair()
        self.wakes.setblocking(False)
        self._waker.setblocking(False)

    def put(self, request: GenerateRequest) -> None:
        grammar = request.sampling.grammar
        assert grammar is not None, "only a constrained request waits for a grammar"
        future = self._compiler.compile(grammar)
        self._waiting[request.request_id] = request, future
        future.add_done_callback(lambda _: self._wake(request.request_id))

    def cancel(self, request_id: str) -> RequestSummary | None:
        """Give a request up, and the work on its grammar if no other one needs it. None if it does not wait here."""
        entry = self._waiting.pop(request_id, None)
        if entry is None:
            return None
        request, _ = entry
        assert request.sampling.grammar is not None
        self._compiler.leave(request.sampling.grammar)
        output = request.token_ids[request.num_prompt :]
        return RequestSummary(request_id, output, "abort", request.num_prompt, cached_tokens=0, queue_seconds=0.0)

    def take(self) -> list[Compiled]:
        """The requests whose grammars were compiled, or cannot be."""
        if not self._done:
            return []
        while self._drain():
            pass
        taken = []
        while self._done:
            entry = self._waiting.pop(self._done.popleft(), None)
            if entry is not None:
                taken.append(Compiled(entry[0], self._outcome(*entry)))
        return taken

    def close(self) -> None:
        self._compiler.close()
        self.wakes.close()
        self._waker.close()

    def _outcome(self, request: GenerateRequest, future: Future[CompiledGrammar]) -> Matcher | GrammarError:
        grammar = request.sampling.grammar
        assert grammar is not None
        self._compiler.leave(grammar)
        try:
            return self._compiler.matcher(future.result(), grammar.after)
        except GrammarError as error:
            return error

    def _wake(self, request_id: str) -> None:
        """Called in the compiler's threads."""
        self._done.append(request_id)
        try:
            self._waker.send(b"\0")
        except OSError:  # it has been woken often enough, or is closed
            return

    def _drain(self) -> bool:
        try:
            return len(self.wakes.recv(4096)) == 4096
        except BlockingIOError:
            return False
