"""One request's constraint at work: which tokens may come next, and what has come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from replicas.grammar.source import GrammarError

if TYPE_CHECKING:
    import torch
    from xgrammar import CompiledGrammar
    from xgrammar import GrammarMatcher as Automaton

ALL = -1  # 32 tokens that are all allowed


class Matcher:
    """`after` are the bytes behind whose first occurrence in the output the constraint begins; until then everything
    may come but the end. It is a function of the output alone: `replay` rebuilds it from that of an earlier attempt."""

    def __init__(
        self,
        compiled: CompiledGrammar,
        after: bytes,
        token_bytes: Sequence[bytes],
        eos_token_ids: Sequence[int],
    ) -> None:
        from xgrammar import GrammarMatcher

        self._automaton: Automaton = GrammarMatcher(compiled)
        self._after = after
        self._token_bytes = token_bytes
        self._eos_token_ids = eos_token_ids
        self._has_begun = not after
        self._tail = b""

    @property
    def is_over(self) -> bool:
        """Whether the answer has ended, and nothing can follow."""
        return self._automaton.is_terminated()

    @property
    def automaton(self) -> Automaton | None:
        """What tells the next tokens, once the constraint has begun."""
        return self._automaton if self._has_begun else None

    def accept(self, token_id: int) -> bool:
        """Take in the output's next token. False if the constraint does not allow it."""
        if self._has_begun:
            return self._automaton.accept_token(token_id)
        self._tail += self._token_bytes[token_id] if token_id < len(self._token_bytes) else b""
        self._has_begun = self._after in self._tail
        self._tail = self._tail[-len(self._after) :]
        return True

    def replay(self, token_ids: Sequence[int]) -> None:
        """Take in the output of an earlier attempt. Raises GrammarError if it does not follow the constraint."""
        if not all(map(self.accept, token_ids)):
            raise GrammarError("the output so far does not follow the constraint")

    def fill_before(self, words: torch.Tensor) -> None:
        """The mask before the constraint has begun."""
        words.fill_(ALL)
        numbers: np.ndarray = words.numpy()
        for token_id in self._eos_token_ids:
            numbers[token_id // 32] &= ~np.int32(np.uint32(1 << token_id % 32).view(np.int32))
