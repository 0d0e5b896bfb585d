"""Who goes first when not all can go: by priority, and within one priority in fair turns of the keys.

Fair means tokens, not requests. Each key has a counter of the tokens that it was served; the key with the lowest one is
next, and its oldest request goes. A key that comes back after a rest starts level with those that waited meanwhile, so
that nobody can save up turns. This is start-time fair queueing (Goyal, Vin, Cheng, 1996) as it is used for language
models by the virtual token counter (Sheng et al., OSDI 2024): two keys that both wait are never further apart than one
request of each. Pure: no clock, no randomness, no event loop.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar


class Queued(Protocol):
    """What waits. Lower `priority` goes first; `tokens` is the work it will be."""

    key: str
    priority: int
    tokens: int


Item = TypeVar("Item", bound=Queued)


@dataclass(slots=True)
class _Line(Generic[Item]):
    """What waits of one key, in order of arrival."""

    items: OrderedDict[Item, None] = field(default_factory=OrderedDict)
    tokens: int = 0


class _Band(Generic[Item]):
    """All that waits with one priority. `_served` are the keys' counters; a key without one is level with `_floor`."""

    def __init__(self) -> None:
        self.tokens = 0
        self.lines: dict[str, _Line[Item]] = {}
        self._served: dict[str, int] = {}
        self._floor = 0

    def push(self, item: Item) -> None:
        if item.key not in self.lines:
            self.lines[item.key] = _Line()
            self._served[item.key] = self._counter(item.key)
        line = self.lines[item.key]
        line.items[item] = None
        line.tokens += item.tokens
        self.tokens += item.tokens

    def pop(self) -> Item:
        key = min(self.lines, key=self._served.__getitem__)
        item = next(iter(self.lines[key].items))
        self._floor = max(self._floor, self._served[key])
        self._served[key] += item.tokens
        self.remove(item)
        return item

    def remove(self, item: Item) -> None:
        line = self.lines[item.key]
        del line.items[item]
        line.tokens -= item.tokens
        self.tokens -= item.tokens
        if not line.items:
            del self.lines[item.key]

    def charge(self, key: str, tokens: int) -> None:
        self._served[key] = self._served[key] + tokens if key in self.lines else self._counter(key) + max(0, tokens)

    def tokens_ahead(self, key: str) -> int:
        """What is served before an item of `key` that comes now, if nothing comes after it."""
        own = self.lines[key].tokens if key in self.lines else 0
        turn = self._served[key] + own if key in self.lines else self._counter(key)
        others = ((other, line.tokens) for other, line in self.lines.items() if other != key)
        return own + sum(min(tokens, max(0, turn - self._served[other])) for other, tokens in others)

    def _counter(self, key: str) -> int:
        return max(self._floor, self._served.get(key, 0))


class FairQueue(Generic[Item]):
    """Items are told apart by identity. A band forgets its counters when nothing waits in it any more."""

    def __init__(self) -> None:
        self._bands: dict[int, _Band[Item]] = {}
        self._length = 0

    @property
    def tokens(self) -> int:
        return sum(band.tokens for band in self._bands.values())

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Item]:
        return (item for band in self._bands.values() for line in band.lines.values() for item in line.items)

    def push(self, item: Item) -> None:
        self._bands.setdefault(item.priority, _Band()).push(item)
        self._length += 1

    def pop(self) -> Item:
        """The next one. There must be one."""
        priority = min(self._bands)
        item = self._bands[priority].pop()
        self._shrink(priority)
        return item

    def remove(self, item: Item) -> None:
        """Take out one that will not be served; its key is not charged."""
        self._bands[item.priority].remove(item)
        self._shrink(item.priority)

    def charge(self, key: str, priority: int, tokens: int) -> None:
        """One of the key's items that was served cost so many tokens more, or fewer, than it said."""
        if priority in self._bands:
            self._bands[priority].charge(key, tokens)

    def key_tokens(self, key: str, priority: int) -> int:
        """What waits of a key with this priority or a more urgent one."""
        lines = (band.lines.get(key) for level, band in self._bands.items() if level <= priority)
        return sum(line.tokens for line in lines if line is not None)

    def tokens_ahead(self, key: str, priority: int) -> int:
        """What would be served before an item that comes now, if nothing came after it."""
        above = sum(band.tokens for level, band in self._bands.items() if level < priority)
        return above + (self._bands[priority].tokens_ahead(key) if priority in self._bands else 0)

    def _shrink(self, priority: int) -> None:
        self._length -= 1
        if not self._bands[priority].lines:
            del self._bands[priority]
