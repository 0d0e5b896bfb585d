"""Which tokens a sequence has, and how often its output has each: all that penalties need to know."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

FIRST_ROOM = 64


class SeenTokens:
    """The distinct tokens of an output, and `with_prompt` those of its prompt too. It stays with the sequence's batch
    row and takes in what is new, so in a row that a sequence enters with some output it begins with all of that."""

    __slots__ = ("_counts", "_num_taken", "_places", "_token_ids")

    def __init__(self, token_ids: Sequence[int], num_prompt: int, with_prompt: bool) -> None:
        prompt = np.unique(np.array(token_ids[:num_prompt], dtype=np.int64)) if with_prompt else np.empty(0, np.int64)
        self._places = {token_id: place for place, token_id in enumerate(prompt.tolist())}
        self._token_ids = np.resize(prompt, len(prompt) + FIRST_ROOM) if len(prompt) else np.zeros(FIRST_ROOM, np.int64)
        self._counts = np.zeros(len(self._token_ids), dtype=np.float32)
        self._num_taken = num_prompt
        self.take_in(token_ids)

    def take_in(self, token_ids: Sequence[int]) -> None:
        """Count the tokens of the sequence that are new since the last call."""
        for token_id in token_ids[self._num_taken :]:
            place = self._places.setdefault(token_id, len(self._places))
            if place == len(self._token_ids):
                self._token_ids = np.concatenate((self._token_ids, np.zeros_like(self._token_ids)))
                self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
            self._token_ids[place] = token_id
            self._counts[place] += 1
        self._num_taken = len(token_ids)

    def __len__(self) -> int:
        return len(self._places)

    @property
    def token_ids(self) -> np.ndarray:
        return self._token_ids[: len(self)]

    @property
    def output_counts(self) -> np.ndarray:
        return self._counts[: len(self)]
