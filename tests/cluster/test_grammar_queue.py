"""Constrained requests wait beside the engine until their grammars are compiled, and leave at any time."""

from __future__ import annotations

import select
from concurrent.futures import Future

import pytest

from cluster.grammar_queue import GrammarQueue
from replicas.grammar.source import GrammarError
from replicas.messages import GenerateRequest
from replicas.sampling.grammar_spec import Grammar
from replicas.sampling.params import SamplingParams


class Compiler:
    """Compiles when a test says so."""

    def __init__(self) -> None:
        self.futures: dict[str, Future] = {}
        self.left: list[str] = []

    def compile(self, grammar: Grammar) -> Future:
        return self.futures.setdefault(grammar.text, Future())

    def leave(self, grammar: Grammar) -> None:
        self.left.append(grammar.text)

    def matcher(self, compiled: str, after: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
        return compiled, after

    def close(self) -> None:
        pass


@pytest.fixture
def compiler():
    return Compiler()


@pytest.fixture
def queue(compiler):
    queue = GrammarQueue(compiler)
    yield queue
    queue.close()


def request(name: str, text: str, so_far: tuple[int, ...] = ()) -> GenerateRequest:
    sampling = SamplingParams(grammar=Grammar("regex", text, after=(9,)))
    return GenerateRequest(name, (1, 2, *so_far), sampling, resumed=len(so_far))


def wakes(queue: GrammarQueue) -> bool:
    return bool(select.select([queue.wakes], [], [], 0)[0])


def test_requests_come_out_as_their_grammars_are_done(queue, compiler):
    for name, text in (("first", "slow"), ("second", "quick"), ("third", "quick")):
        queue.put(request(name, text))
    assert queue.take() == []
    assert not wakes(queue)
    compiler.futures["quick"].set_result("compiled")
    assert wakes(queue)
    taken = queue.take()
    assert [(each.request.request_id, each.outcome) for each in taken] == [
        ("second", ("compiled", (9,))),
        ("third", ("compiled", (9,))),
    ]
    assert not wakes(queue)
    compiler.futures["slow"].set_result("late")
    assert [each.request.request_id for each in queue.take()] == ["first"]


def test_a_grammar_that_was_compiled_before_is_there_at_once(queue, compiler):
    compiler.compile(Grammar("regex", "known")).set_result("compiled")
    queue.put(request("again", "known"))
    assert wakes(queue)
    assert len(queue.take()) == 1


def test_what_cannot_be_compiled_comes_out_with_the_reason(queue, compiler):
    queue.put(request("wrong", "("))
    compiler.futures["("].set_exception(GrammarError("not closed"))
    (refused,) = queue.take()
    assert isinstance(refused.outcome, GrammarError)


def test_who_leaves_is_told_what_it_had_and_never_comes_out(queue, compiler):
    queue.put(request("gone", "x", so_far=(5, 6)))
    summary = queue.cancel("gone")
    assert (summary.finish_reason, summary.token_ids, summary.prompt_tokens) == ("abort", (5, 6), 2)
    assert compiler.left == ["x"]
    assert queue.cancel("gone") is None
    compiler.futures["x"].set_result("compiled")
    assert queue.take() == []
