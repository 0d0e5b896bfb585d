"""What drawing a sequence's next token depends on besides its logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from replicas.sampling.bad_words import BadWords
from replicas.sampling.params import SamplingParams
from replicas.sampling.rows import SampleRow, SparseBias
from replicas.sampling.seen_tokens import SeenTokens


class SamplingState:
    """Lives with a batch row, made from the parameters and the tokens with which a sequence enters: so it is the same
    after a preemption, or on another replica. `eos_token_ids` end an answer unless its parameters say otherwise."""

    __slots__ = ("_allowed_ids", "_bad_words", "_bias", "_end_ids", "_is_plain", "_min_length", "_params", "_seen")

    def __init__(
        self, params: SamplingParams, token_ids: Sequence[int], num_prompt: int, eos_token_ids: tuple[int, ...]
    ) -> None:
        self._params = params
        self._min_length = num_prompt + params.min_tokens
        self._end_ids = params.stop_token_ids if params.ignore_eos else params.stop_token_ids + eos_token_ids
        self._bad_words = BadWords(params.bad_words) if params.bad_words else None
        self._bias = SparseBias.of(params.logit_bias) if params.logit_bias else None
        self._allowed_ids = np.array(params.allowed_token_ids, dtype=np.int64) if params.allowed_token_ids else None
        self._seen: SeenTokens | None = None
        repeats = params.repetition_penalty != 1.0
        if repeats or params.presence_penalty or params.frequency_penalty:
            self._seen = SeenTokens(token_ids, num_prompt, with_prompt=repeats)
        parts = (self._bad_words, self._bias, self._allowed_ids, self._seen)
        self._is_plain = all(part is None for part in parts)

    def next_row(self, token_ids: Sequence[int], bitmask: torch.Tensor | None = None) -> SampleRow:
        """How to draw the token after `token_ids`, which are all of the sequence, if `bitmask` says which may come."""
        position = len(token_ids)
        banned_ids = self._end_ids if position < self._min_length else ()
        if self._is_plain:
            return SampleRow(self._params, position, banned_ids, bitmask=bitmask)
        if self._bad_words is not None:
            banned_ids += self._bad_words.banned_after(token_ids)
        if self._seen is not None:
            self._seen.take_in(token_ids)
        return SampleRow(self._params, position, banned_ids, self._bias, self._seen, self._allowed_ids, bitmask)
