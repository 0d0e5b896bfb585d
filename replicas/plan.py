"""What the scheduler tells the executor for one step, differences only, and what it hears back.

Every rank mirrors the batch by slot, so a running request costs a plan one `Work` row, whatever its length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from replicas.messages import TokenLogprobs
from replicas.sampling.params import SamplingParams

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Admission:
    """A sequence enters `slot` with `num_computed` of its tokens already in the KV blocks `block_ids`. Of its prompt
    the log probabilities of all but the first `num_scored` tokens are wanted."""

    slot: int
    token_ids: tuple[int, ...]
    num_prompt: int
    num_computed: int
    block_ids: tuple[int, ...]
    sampling: SamplingParams
    num_scored: int


class Work(NamedTuple):
    """Compute the next `num_tokens` tokens of the sequence in `slot`, into its blocks and these new ones.
    When that reaches the sequence's last token, the next one is sampled and appended to the mirror."""

    slot: int
    num_tokens: int
    new_block_ids: tuple[int, ...] = ()


class Masks(Protocol):
    """Which tokens may be drawn for those of a step's work rows whose `rows` are named: one row of 32-bit words each,
    the first token in the lowest bit. They are asked for once, and before any result of the step is known."""

    @property
    def rows(self) -> tuple[int, ...]: ...

    @property
    def words_NW(self) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Applied in this order: `released` slots are emptied, `admitted` ones filled, `work` computed.
    `num_decodes` of the work rows continue an answer; the tokens of the others are prefill."""

    released: tuple[int, ...]
    admitted: tuple[Admission, ...]
    work: tuple[Work, ...]
    num_decodes: int = 0
    masks: Masks | None = None

    @property
    def num_prefill_tokens(self) -> int:
        return sum(work.num_tokens for work in self.work) - self.num_decodes


@dataclass(frozen=True, slots=True)
class StepResults:
    """For each work row the token sampled after its last token, or None. By row, if they were asked for, the log
    probabilities of that token and of those prompt tokens that come behind tokens of this step."""

    token_ids: list[int | None]
    logprobs: Mapping[int, TokenLogprobs] = field(default_factory=dict)
    prompt_logprobs: Mapping[int, Sequence[TokenLogprobs]] = field(default_factory=dict)
