"""Whether a whole answer fits a constraint, asked of xgrammar itself."""

from __future__ import annotations

import xgrammar

from replicas.grammar.source import source_of
from replicas.sampling.grammar_spec import Grammar

_END = 128


def accepts(grammar: Grammar, text: str) -> bool:
    """For constraints that are, or have become, structural tags; with a vocabulary of ASCII characters."""
    source = source_of(grammar)
    assert source.language == "structural_tag"
    vocabulary = xgrammar.TokenizerInfo([*map(chr, range(_END)), "<end>"], stop_token_ids=[_END])
    compiled = xgrammar.GrammarCompiler(vocabulary).compile_structural_tag(source.text)
    matcher = xgrammar.GrammarMatcher(compiled)
    return bool(matcher.accept_string(text) and matcher.accept_token(_END))
