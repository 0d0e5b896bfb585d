"""What a caller may ask of the sampler. Checked once, where the request enters."""

from __future__ import annotations

from dataclasses import dataclass

MAX_SEED = 2**63 - 1
GREEDY_BELOW = 1e-5  # where logits divided by the temperature would leave float32


class ParameterError(ValueError):
    """`field` is `value`, but must be what `allowed` says."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{field} is {value}, but must be {allowed}")
        self.field = field
        self.value = value
        self.allowed = allowed


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to turn one request's logits into tokens, and when to stop.

    `temperature` 0 means greedy. `top_k` 0 and `top_p` 1 mean "off". `seed` must be fixed by whoever
    creates the request: nothing below the gateway draws randomness of its own.
    Raises ParameterError naming the field, the value and the limit.
    """

    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        _require(self.max_tokens >= 1, "max_tokens", self.max_tokens, "at least 1")
        _require(
            0 <= self.min_tokens <= self.max_tokens,
            "min_tokens",
            self.min_tokens,
            f"between 0 and max_tokens ({self.max_tokens})",
        )
        _require(0.0 <= self.temperature <= 2.0, "temperature", self.temperature, "between 0 and 2")
        _require(self.top_k >= 0, "top_k", self.top_k, "0 (off) or a positive number")
        _require(0.0 < self.top_p <= 1.0, "top_p", self.top_p, "above 0 and at most 1")
        _require(0.0 <= self.min_p <= 1.0, "min_p", self.min_p, "between 0 and 1")
        _require(0 <= self.seed <= MAX_SEED, "seed", self.seed, f"between 0 and {MAX_SEED}")

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW or self.top_k == 1


def _require(holds: bool, field: str, value: object, allowed: str) -> None:
    if not holds:
        raise ParameterError(field, value, allowed)
