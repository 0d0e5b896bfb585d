"""Sets of replicas, each kept once: a KV block names the set of its holders by a small integer.

Blocks of one prefix are held by the same replicas, so there are far fewer sets than blocks. A set is a bitmask, a bit
for each holder. How many blocks name it is counted, and what none names is dropped.
"""

from __future__ import annotations

NOBODY = 0  # names the empty set


class HolderSets:
    """At most `max_sets` sets, and those of a single holder, for which there is always room."""

    def __init__(self, max_sets: int) -> None:
        self._max_sets = max_sets
        self.masks = [0]
        self._num_blocks = [0]
        self._names: dict[int, int] = {0: NOBODY}
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self.masks) - len(self._free) - 1

    def move(self, old: int, mask: int, num_blocks: int = 1) -> int:
        """So many blocks that named `old` now have the holders `mask`, or some of these if that set finds no room.
        Returns what they are to name."""
        new = self._names.get(mask)
        if new is None:
            new = self._add(mask if self._has_room(mask) else self._known_part(old, mask))
        self._num_blocks[new] += num_blocks
        self._num_blocks[old] -= num_blocks
        if old and not self._num_blocks[old]:
            self._drop(old)
        return new

    def forget(self, bit: int) -> None:
        """Take a holder out of every set. Sets that become equal keep their names: each is right by itself."""
        for name, mask in enumerate(self.masks):
            if not mask & bit:
                continue
            self.masks[name] = mask ^ bit
            if self._names.get(mask) == name:
                del self._names[mask]
            self._names.setdefault(mask ^ bit, name)

    def _has_room(self, mask: int) -> bool:
        return len(self) < self._max_sets or not mask & (mask - 1)

    def _known_part(self, old: int, mask: int) -> int:
        part = self.masks[old] & mask
        return part if part in self._names else part & -part

    def _add(self, mask: int) -> int:
        if (known := self._names.get(mask)) is not None:
            return known
        if self._free:
            name = self._free.pop()
            self.masks[name] = mask
        else:
            name = len(self.masks)
            self.masks.append(mask)
            self._num_blocks.append(0)
        self._names[mask] = name
        return name

    def _drop(self, name: int) -> None:
        mask = self.masks[name]
        if self._names.get(mask) == name:
            del self._names[mask]
        self.masks[name] = 0
        self._free.append(name)
