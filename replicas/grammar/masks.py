"""The masks of one step: for every row that has a constraint, the tokens that may be drawn.

They are filled when they are asked for: on a GPU, while it computes the step.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from xgrammar import BatchGrammarMatcher

    from replicas.grammar.matcher import Matcher

WORD_BITS = 32
MOST_THREADS = 8


class MaskFiller:
    """Fills the masks of an engine's steps, for a model with logits for `vocab_size` tokens."""

    def __init__(self, vocab_size: int) -> None:
        self._words = -(-vocab_size // WORD_BITS)
        self._batch: BatchGrammarMatcher | None = None

    def fill(self, matchers: Sequence[Matcher]) -> torch.Tensor:
        """One row of 32-bit words for each matcher; the lowest bit of the first is the first token's."""
        if self._batch is None:
            from xgrammar import BatchGrammarMatcher

            self._batch = BatchGrammarMatcher(max(1, min(MOST_THREADS, (os.cpu_count() or 1) // 2)))
        words_NW = torch.empty(len(matchers), self._words, dtype=torch.int32)
        begun = [(index, matcher.automaton) for index, matcher in enumerate(matchers) if matcher.automaton is not None]
        if begun:
            self._batch.batch_fill_next_token_bitmask(
                [automaton for _, automaton in begun], words_NW, [index for index, _ in begun]
            )
        for index, matcher in enumerate(matchers):
            if matcher.automaton is None:
                matcher.fill_before(words_NW[index])
        return words_NW


class FilledMasks:
    """Masks that came from another rank."""

    def __init__(self, rows: tuple[int, ...], words_NW: torch.Tensor) -> None:
        self.rows = rows
        self.words_NW = words_NW


class PlannedMasks:
    """The masks for `rows` of a step's work. Asked for before any token of the step is taken in."""

    def __init__(self, rows: tuple[int, ...], matchers: Sequence[Matcher], filler: MaskFiller) -> None:
        self.rows = rows
        self._matchers = matchers
        self._filler = filler

    @cached_property
    def words_NW(self) -> torch.Tensor:
        return self._filler.fill(self._matchers)
