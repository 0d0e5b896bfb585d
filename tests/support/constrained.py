"""Constrained requests through a real engine over a tiny random model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from replicas.engine import Engine
from replicas.grammar.compiler import GrammarCompiler
from replicas.grammar.tokens import TokenSpec
from replicas.messages import GenerateRequest, RequestSummary
from replicas.sampling.grammar_spec import Grammar
from replicas.sampling.params import SamplingParams


@contextmanager
def compiling(
    folder: Path, vocab_size: int, eos_token_ids: tuple[int, ...], **limits: float
) -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(TokenSpec(str(folder), vocab_size, eos_token_ids), **limits)
    try:
        yield compiler
    finally:
        compiler.close()


class Constrained:
    """An engine and the compiler that its requests need."""

    def __init__(self, engine: Engine, compiler: GrammarCompiler) -> None:
        self.engine = engine
        self._compiler = compiler

    def add(
        self, name: str, prompt: Sequence[int], grammar: Grammar | None, so_far: Sequence[int] = (), **sampling: object
    ) -> None:
        params = SamplingParams(**{"max_tokens": 60, "grammar": grammar, **sampling})  # type: ignore[arg-type]
        request = GenerateRequest(name, (*prompt, *so_far), params, resumed=len(so_far))
        matcher = None
        if grammar is not None:
            matcher = self._compiler.matcher(self._compiler.compile(grammar).result(), grammar.after)
        self.engine.add(request, matcher)

    def run(self) -> dict[str, RequestSummary]:
        finished: dict[str, RequestSummary] = {}
        while self.engine.has_work:
            finished |= {summary.request_id: summary for summary in self.engine.step().finished}
        self.engine.check_integrity()
        return finished

    def answer(self, prompt: Sequence[int], grammar: Grammar | None, so_far: Sequence[int] = (), **sampling: object):
        self.add("alone", prompt, grammar, so_far, **sampling)
        return self.run()["alone"]

    def text(self, summary: RequestSummary) -> str:
        pieces = self._compiler.tokens.token_bytes
        eos = self.engine.model.eos_token_ids
        return b"".join(pieces[token] for token in summary.token_ids if token not in eos).decode(errors="replace")
