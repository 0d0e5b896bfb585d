"""How fast this engine has lately been: what the ITL objective and the load reports are computed from."""

from __future__ import annotations

from dataclasses import dataclass

WEIGHT_OF_NEWEST = 0.2


@dataclass(slots=True)
class Pace:
    """Exponential moving averages over steps. Rates in tokens/s, durations in seconds, 0 until measured."""

    step_seconds: float = 0.0
    decode_step_seconds: float = 0.0
    prefill_rate: float = 0.0
    decode_rate: float = 0.0

    def observe(self, seconds: float, num_decodes: int, num_prefill_tokens: int) -> None:
        """A step of `num_decodes` decode tokens and `num_prefill_tokens` prefill tokens took `seconds`."""
        self.step_seconds = _blend(self.step_seconds, seconds)
        if num_prefill_tokens == 0:
            self.decode_step_seconds = _blend(self.decode_step_seconds, seconds)
            self.decode_rate = _blend(self.decode_rate, num_decodes / max(seconds, 1e-9))
            return
        share = seconds - (self.decode_step_seconds if num_decodes else 0.0)
        self.prefill_rate = _blend(self.prefill_rate, num_prefill_tokens / max(share, seconds / 10, 1e-9))


def _blend(average: float, newest: float) -> float:
    return newest if average == 0.0 else average + WEIGHT_OF_NEWEST * (newest - average)
