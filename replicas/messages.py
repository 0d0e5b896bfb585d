"""The words spoken between gateway and engine: frozen dataclasses without a codec.

The codecs live in `cluster/`; nothing here knows how a message travels.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from replicas.sampling.params import SamplingParams

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One attempt at continuing one prompt; `request_id` names the attempt. The last `resumed` of `token_ids` are no
    prompt but the output of an earlier attempt elsewhere, and the answer goes on behind them. `block_keys` are the
    chained keys of the full KV blocks (may be empty: the engine then hashes for itself). `remaining_seconds` is the
    time left until the caller's deadline. Lower `priority` runs first."""

    request_id: str
    token_ids: tuple[int, ...]
    sampling: SamplingParams
    resumed: int = 0
    block_keys: tuple[bytes, ...] = ()
    priority: int = 0
    remaining_seconds: float | None = None
    cache_salt: str = ""

    @property
    def num_prompt(self) -> int:
        return len(self.token_ids) - self.resumed

    @property
    def scores_prompt(self) -> bool:
        """Whether log probabilities of the prompt are wanted: then it is computed, whatever is cached. What has output
        of an earlier attempt has had them."""
        return self.sampling.prompt_logprobs is not None and not self.resumed


class TokenLogprobs(NamedTuple):
    """The log probability of one token in the model's own distribution, before any sampling parameter, and the
    likeliest tokens in its place with theirs, the likeliest first."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


PromptLogprobs = tuple[TokenLogprobs | None, ...]
"""One entry for each token of a prompt; the first has none."""


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """New tokens of one request: `offset` is the index of the first of them among its output tokens. If they were
    asked for, `logprobs` has one entry for each, and the prompt's come with the first."""

    request_id: str
    choice: int
    offset: int
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: PromptLogprobs = ()


@dataclass(frozen=True, slots=True)
class RequestSummary:
    """The whole of a finished request, returned by the unary call: a lost bus message delays text, never loses it.
    `token_ids` is all output, of earlier attempts too; `logprobs` are those of this attempt's tokens. Only an attempt
    that is the first has `prompt_logprobs`."""

    request_id: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    prompt_tokens: int
    cached_tokens: int
    queue_seconds: float
    preemptions: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: PromptLogprobs = ()


@dataclass(frozen=True, slots=True)
class KvStored:
    """The first copy of these blocks came into being; `parent` is the key before the first of them."""

    block_keys: tuple[bytes, ...]
    parent: bytes


@dataclass(frozen=True, slots=True)
class KvRemoved:
    """The last copy of these blocks is gone."""

    block_keys: tuple[bytes, ...]


KvEvent = KvStored | KvRemoved


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The state of an engine after a step. Counters (`*_total`) only grow; rates are tokens per second."""

    running: int = 0
    waiting: int = 0
    waiting_prefill_tokens: int = 0
    kv_blocks_total: int = 0
    kv_blocks_free: int = 0
    step_seconds: float = 0.0
    prefill_rate: float = 0.0
    decode_rate: float = 0.0
    decode_step_seconds: float = 0.0
    steps_total: int = 0
    preemptions_total: int = 0
    prefix_query_tokens_total: int = 0
    prefix_hit_tokens_total: int = 0
    prompt_tokens_total: int = 0
    generation_tokens_total: int = 0


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What one engine step produced. `finished` holds the summaries of requests that ended in this step."""

    events: tuple[TokenEvent, ...] = ()
    finished: tuple[RequestSummary, ...] = ()
    kv_events: tuple[KvEvent, ...] = field(default=())
