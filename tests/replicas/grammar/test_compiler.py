"""Compiling happens in another process, which may fail in any way without harm to the engine's."""

from __future__ import annotations

import os
import signal
import time

import pytest

from replicas.grammar.compiler import GrammarCompiler
from replicas.grammar.source import GrammarError
from replicas.sampling.grammar_spec import Grammar
from tests.support.constrained import compiling
from tests.support.tokenizers import write_byte_level

VOCAB_SIZE = 512
SLOW = Grammar("ebnf", "root ::= " + "".join(f'("a{index}" | [b-z]{{1,3000}}){{1,3000}} ' for index in range(200)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("byte-level")
    write_byte_level(folder)
    return folder


@pytest.fixture(scope="module")
def compiler(folder):
    with compiling(folder, VOCAB_SIZE, (2,)) as compiler:
        yield compiler


def test_a_grammar_is_compiled_once_for_all_who_ask(compiler):
    grammar = Grammar("regex", "[a-z]+")
    first = compiler.compile(grammar)
    assert compiler.compile(grammar) is first
    assert first.result() is compiler.compile(grammar).result()


@pytest.mark.parametrize(
    "text", ["root ::= x", "root ::= (", "nothing at all", 'root ::= "a', "root ::= " + "(" * 100_000, "start: /(/"]
)
def test_a_grammar_that_cannot_be_parsed_is_refused(compiler, text):
    with pytest.raises(GrammarError):
        compiler.compile(Grammar("ebnf", text)).result()
    assert compiler.compile(Grammar("choice", '["still", "alive"]')).result()


def test_lark_grammars_are_known_too(compiler):
    assert compiler.compile(Grammar("ebnf", 'start: "a" NUMBER\nNUMBER: /[0-9]+/')).result()


def test_work_that_nobody_waits_for_ends(compiler):
    future = compiler.compile(SLOW)
    compiler.compile(SLOW)
    compiler.leave(SLOW)
    assert not future.cancelled()
    compiler.leave(SLOW)
    assert future.cancelled()
    assert compiler.compile(Grammar("choice", '["next"]')).result(timeout=30)


def test_compiling_has_a_time_limit(folder):
    with compiling(folder, VOCAB_SIZE, (2,), seconds=0.0001) as compiler, pytest.raises(GrammarError, match="too much"):
        compiler.compile(Grammar("choice", '["a"]')).result()


def test_a_compiling_process_that_was_killed_is_replaced(compiler: GrammarCompiler):
    compiler.compile(Grammar("choice", '["before"]')).result()
    server = compiler._server
    os.kill(server._process.pid, signal.SIGKILL)
    while server.runs:
        time.sleep(0.01)
    assert compiler.compile(Grammar("choice", '["after"]')).result()


def test_special_tokens_are_no_text_unless_a_structural_tag_spells_them(compiler: GrammarCompiler):
    tokens = compiler.tokens
    (start,) = [token for token, piece in enumerate(tokens.token_bytes) if piece == b"<|im_start|>"]
    free = compiler.matcher(compiler.compile(Grammar("ebnf", "root ::= [^x]*")).result())
    assert not free.accept(start)
    tag = '{"type": "structural_tag", "format": {"type": "const_string", "value": "<|im_start|>go"}}'
    assert tokens.spelled_in(Grammar("structural_tag", tag)) == (start,)
    tagged = compiler.matcher(compiler.compile(Grammar("structural_tag", tag)).result())
    assert tagged.accept(start)
