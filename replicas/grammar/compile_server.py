"""The process that compiles grammars: `python -m replicas.grammar.compile_server SOCKET`, its spec on standard input.

Compiling runs foreign code on what callers wrote: it may take long, fill the memory, or crash. So each grammar is
compiled in a fork of this process, which has all libraries loaded and ends by itself: at the time limit, at the memory
limit, and when nobody waits for it any more.
"""

from __future__ import annotations

import json
import os
import re
import resource
import select
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from typing import Any

from replicas.grammar.compile_channel import COMPILED, REFUSED, receive, send
from replicas.grammar.source import source_of
from replicas.grammar.tokens import GrammarTokens, TokenSpec
from replicas.sampling.grammar_spec import Grammar

EXTRA_MEMORY = 2 * 1024**3
LOOK_SECONDS = 1.0

_PLACE = re.compile(r"^\[\d\d:\d\d:\d\d\] \S+: ")  # where in its sources xgrammar stands when it complains


def main() -> None:
    spec: dict[str, Any] = json.loads(sys.stdin.buffer.read())
    parent, seconds = spec["parent"], spec["seconds"]
    listener = socket.socket(fileno=int(sys.argv[1]))
    tokens = GrammarTokens(TokenSpec(spec["model_path"], spec["vocab_size"], tuple(spec["eos_token_ids"])))
    tokens.info(())
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while os.getppid() == parent:
        ready, _, _ = select.select([listener], [], [], LOOK_SECONDS)
        if not ready:
            continue
        connection, _ = listener.accept()
        if os.fork() == 0:
            _compile_and_end(connection, tokens, seconds)
        connection.close()


def _compile_and_end(connection: socket.socket, tokens: GrammarTokens, seconds: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, seconds)
    limit = _memory() + EXTRA_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        order = json.loads(receive(connection))
        threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
        answer = _compiled(tokens, Grammar(order["kind"], order["text"]), order["spelled"])
    except Exception as error:  # whatever xgrammar has to say
        answer = REFUSED + _PLACE.sub("", str(error)).strip().encode()
    send(connection, answer)
    os._exit(0)


def _compiled(tokens: GrammarTokens, grammar: Grammar, spelled: Sequence[int]) -> bytes:
    from xgrammar import GrammarCompiler

    source = source_of(grammar)
    compiler = GrammarCompiler(
        tokens.info(spelled), max_threads=max(1, (os.cpu_count() or 1) // 2), cache_enabled=False
    )
    match source.language:
        case "lark":
            compiled = compiler.compile_lark(source.text)
        case "structural_tag":
            compiled = compiler.compile_structural_tag(source.text)
        case _:
            compiled = compiler.compile_grammar(source.text)
    return COMPILED + compiled.serialize_json().encode()


def _end_with(connection: socket.socket) -> None:
    """End when the other side does: nobody waits for the result."""
    if not connection.recv(1):
        os._exit(1)


def _memory() -> int:
    """This process's address space in bytes."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


if __name__ == "__main__":
    main()
