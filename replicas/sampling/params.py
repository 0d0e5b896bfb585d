"""What a caller may ask of the sampler. Checked once, where the request enters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from replicas.sampling.grammar_spec import Grammar

MAX_SEED = 2**63 - 1
MAX_LOGPROBS = 20
MAX_BIAS = 100.0
MAX_TOKEN_ID = 2**31 - 1
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
    creates the request: nothing below the gateway draws randomness of its own; `choice` tells requests apart that are
    choices of one answer. `logit_bias` holds token ids and what is added to their logits. Without `allowed_token_ids`
    all are. No sequence of `bad_words` may be completed. `logprobs` asks for each drawn token's own log probability
    and those of so many likeliest tokens, `prompt_logprobs` for the same of the prompt's tokens; None asks for nothing.
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
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    choice: int = 0
    grammar: Grammar | None = None

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
        _require(self.choice >= 0, "choice", self.choice, "0 or a positive number")
        self._check_penalties()
        self._check_tokens()
        for field, count in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            _require(count is None or 0 <= count <= MAX_LOGPROBS, field, count, f"between 0 and {MAX_LOGPROBS}")

    def _check_penalties(self) -> None:
        for field in ("presence_penalty", "frequency_penalty"):
            penalty = getattr(self, field)
            _require(-2.0 <= penalty <= 2.0, field, penalty, "between -2 and 2")
        penalty = self.repetition_penalty
        _require(0.0 < penalty < math.inf, "repetition_penalty", penalty, "above 0 and finite")

    def _check_tokens(self) -> None:
        _require_tokens("logit_bias", [token_id for token_id, _ in self.logit_bias])
        for _, bias in self.logit_bias:
            _require(-MAX_BIAS <= bias <= MAX_BIAS, "logit_bias", bias, f"between {-MAX_BIAS:g} and {MAX_BIAS:g}")
        _require_tokens("allowed_token_ids", self.allowed_token_ids)
        _require(
            not self.allowed_token_ids or self.grammar is None,
            "allowed_token_ids",
            self.allowed_token_ids,
            "left out beside a grammar",
        )
        for word in self.bad_words:
            _require(len(word) > 0, "bad_words", word, "sequences of at least one token")
            _require_tokens("bad_words", word)

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW or self.top_k == 1

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All tokens that are named in it."""
        biased = (token_id for token_id, _ in self.logit_bias)
        bad = (token_id for word in self.bad_words for token_id in word)
        return (*self.stop_token_ids, *biased, *self.allowed_token_ids, *bad)


def _require(holds: bool, field: str, value: object, allowed: str) -> None:
    if not holds:
        raise ParameterError(field, value, allowed)


def _require_tokens(field: str, token_ids: Sequence[int]) -> None:
    """There may be thousands, so only the smallest and the largest are looked at."""
    for token_id in (min(token_ids), max(token_ids)) if token_ids else ():
        _require(0 <= token_id <= MAX_TOKEN_ID, field, token_id, "token ids, which are not negative")
