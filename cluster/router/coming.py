"""Prompts that have no first token yet: what is computed of them will be there for those who come after them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence


class Coming:
    """By the key of their first KV block, since two prompts with different ones have no other in common."""

    def __init__(self) -> None:
        self._first: dict[str, bytes] = {}
        self._families: defaultdict[bytes, dict[str, tuple[str, Sequence[bytes]]]] = defaultdict(dict)

    def add(self, request_id: str, replica: str, keys: Sequence[bytes]) -> None:
        if not keys:
            return
        self._first[request_id] = keys[0]
        self._families[keys[0]][request_id] = replica, keys

    def remove(self, request_id: str) -> None:
        first = self._first.pop(request_id, None)
        if first is None:
            return
        family = self._families[first]
        del family[request_id]
        if not family:
            del self._families[first]

    def forget(self, replica: str) -> None:
        """What was to be computed there will not be."""
        lost = [name for family in self._families.values() for name, (host, _) in family.items() if host == replica]
        for request_id in lost:
            self.remove(request_id)

    def match(self, keys: Sequence[bytes]) -> dict[str, int]:
        """Blocks of this prompt that each replica is about to have, where there are any."""
        if not keys or keys[0] not in self._families:
            return {}
        found: dict[str, int] = {}
        for replica, others in self._families[keys[0]].values():
            found[replica] = max(found.get(replica, 0), common_blocks(keys, others))
        return found


def common_blocks(keys: Sequence[bytes], others: Sequence[bytes]) -> int:
    """Length of the longest common prefix of two chains of block keys, by bisection: chained keys that are equal say
    that all before them are."""
    low, high = 0, min(len(keys), len(others))
    while low < high:
        middle = (low + high + 1) // 2
        if keys[middle - 1] == others[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
