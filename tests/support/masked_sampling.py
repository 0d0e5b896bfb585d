"""Random text under a constraint, without a model: at each step one of the tokens that xgrammar's mask allows."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np
import xgrammar

from replicas.grammar.source import source_of
from replicas.sampling.grammar_spec import Grammar

CLOSING = 0.6  # how often a token is chosen that brings the end nearer, where there is one


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by their bytes; the last of them ends an answer."""

    token_bytes: list[bytes]

    def __post_init__(self) -> None:
        size, end = len(self.token_bytes), len(self.token_bytes) - 1
        info = xgrammar.TokenizerInfo(
            [*self.token_bytes[:-1], b""], xgrammar.VocabType.RAW, vocab_size=size, stop_token_ids=[end]
        )
        object.__setattr__(self, "compiler", xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False))
        closing = [token for token, piece in enumerate(self.token_bytes) if piece[:1] in (b'"', b"}", b"]")]
        object.__setattr__(self, "closing", np.array([*closing, end]))

    def compile(self, grammar: Grammar) -> xgrammar.CompiledGrammar:
        source = source_of(grammar)
        if source.language == "structural_tag":
            return self.compiler.compile_structural_tag(source.text)
        if source.language == "lark":
            return self.compiler.compile_lark(source.text)
        return self.compiler.compile_grammar(source.text)

    def text(self, compiled: xgrammar.CompiledGrammar, random: Random, most: int = 400) -> str | None:
        """A whole answer; None if it did not end within so many tokens."""
        matcher = xgrammar.GrammarMatcher(compiled)
        words = xgrammar.allocate_token_bitmask(1, len(self.token_bytes))
        written = b""
        for _ in range(most):
            matcher.fill_next_token_bitmask(words)
            bits = np.unpackbits(words.numpy().view(np.uint8), bitorder="little")[: len(self.token_bytes)]
            allowed = np.flatnonzero(bits)
            assert len(allowed), f"nothing may follow {written!r}"
            nearer = self.closing[bits[self.closing] == 1]
            token = int(random.choice(nearer if len(nearer) and random.random() < CLOSING else allowed))
            assert matcher.accept_token(token)
            if token == len(self.token_bytes) - 1:
                return written.decode()
            written += self.token_bytes[token]
        return None

    def accepts(self, compiled: xgrammar.CompiledGrammar, text: str) -> bool:
        matcher = xgrammar.GrammarMatcher(compiled)
        return bool(matcher.accept_string(text)) and matcher.is_completed()


def small_vocabulary() -> Vocabulary:
    """All bytes, and pieces that cross the borders of what JSON is made of."""
    letters = "etaonirs"
    words = [left + right for left in letters for right in letters]
    pieces = [
        '{"',
        '":',
        '": ',
        '", "',
        '",',
        '"}',
        '"]',
        "]}",
        "}}",
        "}]",
        "[[",
        "\n  ",
        "  ",
        "\\n",
        '\\"',
        "12",
        "00",
    ]
    pieces += ["true", "false", "null", "-1", "0.5", ", ", "é", "🙂", "开心", " \n", '":{"', '":["', "null,", "1,"]
    return Vocabulary(
        [*(bytes([byte]) for byte in range(256)), *(word.encode() for word in [*words, *pieces]), b"<end>"]
    )
