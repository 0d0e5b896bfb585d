"""How much of a limit a minute has used up: the sliding window counter of the library `limits`.

It keeps two numbers a limit, whatever the limit is in: a window with an entry for each unit would hold a million of
them for a million tokens. What counts is this window's use and of the last window's a part, that which the sliding
minute still covers.
"""

from __future__ import annotations

from dataclasses import dataclass

MINUTE = 60


@dataclass(frozen=True, slots=True)
class Window:
    """`previous` fades over the `seconds_left` of the present window, in which `current` has been used."""

    limit: int
    previous: int
    current: int
    seconds_left: float

    @property
    def remaining(self) -> int:
        used = int(self.previous * self.seconds_left / MINUTE) + self.current
        return min(self.limit, max(0, self.limit - used))

    @property
    def reset_seconds(self) -> float:
        """Until everything is free again, if nothing more is used."""
        if self.current > 0:
            return self.seconds_left + MINUTE
        return self.seconds_left if self.previous > 0 else 0.0

    def seconds_until(self, cost: int) -> float:
        """Until `cost` is free, if nothing more is used. It may not exceed the limit."""
        assert cost <= self.limit, "this will never be free"
        if cost <= self.remaining:
            return 0.0
        room = self.limit - cost
        if self.current <= room:  # it is enough that the previous window fades
            return self.seconds_left - MINUTE * (room - self.current) / self.previous
        return self.seconds_left + MINUTE * (1 - room / self.current)
