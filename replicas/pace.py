"""How fast this engine has lately been: what the ITL objective and the load reports are computed from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

WEIGHT_OF_NEWEST = 0.2


@dataclass(slots=True)
class _Line:
    """The straight line through points (tokens, seconds) by least squares, in which older points count less."""

    KEPT: ClassVar[float] = 0.98  # of a point's weight, from one to the next: some fifty of them count

    weight: float = 0.0
    tokens: float = 0.0
    seconds: float = 0.0
    squares: float = 0.0
    products: float = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        kept = self.KEPT
        self.weight = kept * self.weight + 1
        self.tokens = kept * self.tokens + tokens
        self.seconds = kept * self.seconds + seconds
        self.squares = kept * self.squares + tokens * tokens
        self.products = kept * self.products + tokens * seconds

    @property
    def slope(self) -> float:
        """Seconds for a further token; while all points are much alike, or lie on no rising line, seconds per token."""
        spread = self.weight * self.squares - self.tokens * self.tokens
        rise = self.weight * self.products - self.tokens * self.seconds
        if spread < 0.01 * self.tokens * self.tokens or rise <= 0:
            return self.seconds / self.tokens
        return rise / spread


@dataclass(slots=True)
class Pace:
    """Moving averages over steps. Rates in tokens/s, durations in seconds, 0 until measured. `prefill_rate` is what
    further prompt tokens in a step cost, without the fixed price of computing any at all."""

    step_seconds: float = 0.0
    decode_step_seconds: float = 0.0
    prefill_rate: float = 0.0
    decode_rate: float = 0.0
    _prefills: _Line = field(default_factory=_Line)

    def observe(self, seconds: float, num_decodes: int, num_prefill_tokens: int) -> None:
        """A step of `num_decodes` decode tokens and `num_prefill_tokens` prefill tokens took `seconds`."""
        self.step_seconds = _blend(self.step_seconds, seconds)
        if num_prefill_tokens == 0:
            self.decode_step_seconds = _blend(self.decode_step_seconds, seconds)
            self.decode_rate = _blend(self.decode_rate, num_decodes / max(seconds, 1e-9))
            return
        share = seconds - (self.decode_step_seconds if num_decodes else 0.0)
        self._prefills.add(num_prefill_tokens, max(share, seconds / 10, 1e-9))
        self.prefill_rate = 1 / self._prefills.slope


def _blend(average: float, newest: float) -> float:
    return newest if average == 0.0 else average + WEIGHT_OF_NEWEST * (newest - average)
