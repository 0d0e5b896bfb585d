"""A request inside the engine: what was asked, and how far it has come."""

from __future__ import annotations

from dataclasses import dataclass, field

from replicas.grammar.matcher import Matcher
from replicas.messages import (
    FinishReason,
    GenerateRequest,
    PromptLogprobs,
    RequestSummary,
    TokenEvent,
    TokenLogprobs,
)


@dataclass(slots=True, eq=False)
class Sequence:
    """One request's tokens and KV blocks. Each step moves `num_computed` towards `num_tokens`; there is no
    prefill or decode phase beyond that. `block_keys` names the full blocks known so far, `num_published` of which
    the pool knows too. While it is `in_flight` a step that was submitted and not yet collected computes it. Times are
    seconds of the engine's clock. When it came `uncached_tokens` of its prompt were not in the cache, and were expected
    to take `prefill_seconds`. `logprobs` and `prompt_logprobs` are those that were asked for, as far as they are
    known."""

    request: GenerateRequest
    arrival: float
    order: int
    root_key: bytes
    token_ids: list[int]
    block_keys: list[bytes]
    uncached_tokens: int = 0
    prefill_seconds: float = 0.0
    num_computed: int = 0
    num_published: int = 0
    block_ids: list[int] = field(default_factory=list)
    slot: int = -1
    in_flight: bool = False
    first_scheduled: float | None = None
    cached_tokens: int = 0
    preemptions: int = 0
    finish_reason: FinishReason | None = None
    matcher: Matcher | None = None
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=lambda: [None])

    @property
    def num_scored(self) -> int:
        """Tokens of the prompt whose log probabilities are known or not wanted."""
        return len(self.prompt_logprobs) if self.request.scores_prompt else self.num_prompt

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_prompt(self) -> int:
        return self.request.num_prompt

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - self.request.num_prompt

    @property
    def num_pending(self) -> int:
        """Tokens whose keys and values are yet to be computed."""
        return len(self.token_ids) - self.num_computed

    @property
    def is_decoding(self) -> bool:
        num_tokens = len(self.token_ids)
        return num_tokens - self.num_computed == 1 and num_tokens > self.request.num_prompt

    @property
    def deadline(self) -> float:
        remaining = self.request.remaining_seconds
        return float("inf") if remaining is None else self.arrival + remaining

    @property
    def whole_prompt_logprobs(self) -> PromptLogprobs:
        """Empty unless they were asked for and all are known."""
        is_whole = self.request.scores_prompt and len(self.prompt_logprobs) == self.num_prompt
        return tuple(self.prompt_logprobs) if is_whole else ()

    def event(self) -> TokenEvent:
        """Its newest token."""
        is_first = self.num_output == self.request.resumed + 1
        return TokenEvent(
            self.request.request_id,
            self.request.sampling.choice,
            self.num_output - 1,
            (self.token_ids[-1],),
            self.finish_reason,
            tuple(self.logprobs[-1:]),
            self.whole_prompt_logprobs if is_first else (),
        )

    def summary(self) -> RequestSummary:
        assert self.finish_reason is not None, "a summary is for finished requests"
        scheduled = self.arrival if self.first_scheduled is None else self.first_scheduled
        return RequestSummary(
            request_id=self.request.request_id,
            token_ids=tuple(self.token_ids[self.num_prompt :]),
            finish_reason=self.finish_reason,
            prompt_tokens=self.num_prompt,
            cached_tokens=self.cached_tokens,
            queue_seconds=scheduled - self.arrival,
            preemptions=self.preemptions,
            logprobs=tuple(self.logprobs),
            prompt_logprobs=self.whole_prompt_logprobs,
        )
