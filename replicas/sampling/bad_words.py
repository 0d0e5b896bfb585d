"""Token sequences that may not be completed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence


class BadWords:
    """As in transformers' NoBadWordsLogitsProcessor a word may begin in the prompt. Words are found by the token before
    their last one, so a step looks at few of them."""

    __slots__ = ("_by_token_before", "_single")

    def __init__(self, words: Iterable[tuple[int, ...]]) -> None:
        self._by_token_before: dict[int, list[tuple[int, ...]]] = defaultdict(list)
        single = []
        for word in words:
            if len(word) == 1:
                single.append(word[0])
            else:
                self._by_token_before[word[-2]].append(word)
        self._single = tuple(single)

    def banned_after(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        """The tokens that would complete a word."""
        words = self._by_token_before.get(token_ids[-1], ())
        return self._single + tuple(word[-1] for word in words if _ends_with(token_ids, word[:-1]))


def _ends_with(token_ids: Sequence[int], ending: tuple[int, ...]) -> bool:
    return tuple(token_ids[-len(ending) :]) == ending
