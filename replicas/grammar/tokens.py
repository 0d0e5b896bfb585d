"""A model's vocabulary as xgrammar wants it: the bytes of every token that text can be written with."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from replicas.grammar.source import read_json
from replicas.sampling.grammar_spec import Grammar
from replicas.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from xgrammar import TokenizerInfo


@dataclass(frozen=True, slots=True)
class TokenSpec:
    """The vocabulary of the model at `model_path`, of which it gives logits for the first `vocab_size` tokens."""

    model_path: str
    vocab_size: int
    eos_token_ids: tuple[int, ...]


class GrammarTokens:
    """Special tokens are no text, so that no constraint lets them into it, except those that a constraint spells."""

    def __init__(self, spec: TokenSpec) -> None:
        self._spec = spec
        tokenizer = Tokenizer.open(Path(spec.model_path))
        self.token_bytes = tokenizer.token_bytes
        self._plain = tokenizer.visible_bytes
        self._special_ids = sorted(tokenizer.special_ids - set(spec.eos_token_ids))
        self._info = lru_cache(maxsize=8)(self._new_info)

    def spelled_in(self, grammar: Grammar) -> tuple[int, ...]:
        """The special tokens that structural tags spell: those that mark a tool call, for example."""
        if grammar.kind != "structural_tag":
            return ()
        text = json.dumps(read_json(grammar.text), ensure_ascii=False)
        return tuple(index for index in self._special_ids if self.token_bytes[index].decode() in text)

    def info(self, spelled: Collection[int]) -> TokenizerInfo:
        """With the special tokens `spelled` as text."""
        return self._info(tuple(spelled))

    def _new_info(self, spelled: tuple[int, ...]) -> TokenizerInfo:
        from xgrammar import TokenizerInfo, VocabType

        size = self._spec.vocab_size
        vocabulary = self._plain[:size] + [b""] * (size - len(self._plain))
        for index in spelled:
            if index < size:
                vocabulary[index] = self.token_bytes[index]
        return TokenizerInfo(vocabulary, VocabType.RAW, vocab_size=size, stop_token_ids=list(self._spec.eos_token_ids))
