"""What a step's ranks say to each other: calls and bytes by kind, and the least that would do.

A ring is assumed for collectives: over n ranks an all-reduce of b bytes puts 2 (n - 1) b bytes on the links and an
all-gather of b bytes from each rank n (n - 1) b; Patarasuk and Yuan (2009) show that no all-reduce moves less.
"""

from __future__ import annotations

from dataclasses import dataclass

from deploy.plan.layout import Layout
from replicas.config import ModelConfig
from replicas.sampling.sharded import PAIR_BYTES

RESULT_BYTES = 8  # an int64 for each sequence of the step, from the last stage to the first
TOKEN_BYTES = 4
CANDIDATE_BYTES = 8  # a float32 logit and an int32 token id: the least that a rank can tell of its best token


@dataclass(frozen=True, slots=True)
class Step:
    """`tokens` to compute for `sequences` that each get a new token; `itemsize` of the model's numbers in bytes."""

    tokens: int
    sequences: int
    greedy: bool
    itemsize: int

    def hidden_bytes(self, config: ModelConfig) -> int:
        return self.tokens * config.hidden_size * self.itemsize


@dataclass(frozen=True, slots=True)
class Traffic:
    """Calls of one kind and size. `payload` is what each of `callers` ranks hands over in one call, in bytes;
    `minimum` the least that all these calls could put on the links."""

    kind: str
    calls: int
    payload: int
    callers: int
    minimum: int

    @property
    def handed_over(self) -> int:
        """By all ranks in all calls."""
        return self.calls * self.callers * self.payload

    @property
    def wire_bytes(self) -> int:
        """On all links together."""
        by_payload = {"all_reduce": 2 * (self.callers - 1), "all_gather": self.callers * (self.callers - 1)}
        return self.calls * self.payload * by_payload.get(self.kind, self.callers)


def step_traffic(config: ModelConfig, layout: Layout, step: Step) -> list[Traffic]:
    """All that one step moves between its ranks, but for the plan that starts it."""
    return [*_tensor_traffic(config, layout, step), *_pipeline_traffic(config, layout, step)]


def _tensor_traffic(config: ModelConfig, layout: Layout, step: Step) -> list[Traffic]:
    """The embedding's rows and two partial sums a layer are added up; then the ranks compare their logits."""
    ranks, hidden = layout.tensor, step.hidden_bytes(config)
    if ranks == 1:
        return []
    sums = 2 * config.num_layers
    columns = -(-config.vocab_size // ranks) * step.itemsize
    told = min(PAIR_BYTES, columns) if step.greedy else columns
    # A looked-up row lies on one rank and is wanted on the others.
    least_sums = (ranks - 1) * hidden + sums * 2 * (ranks - 1) * hidden
    least_logits = ranks * (ranks - 1) * step.sequences * CANDIDATE_BYTES
    return [
        Traffic("all_reduce", sums + 1, hidden, ranks, least_sums),
        Traffic("all_gather", 1, step.sequences * told, ranks, least_logits),
    ]


def _pipeline_traffic(config: ModelConfig, layout: Layout, step: Step) -> list[Traffic]:
    """Every rank of a stage hands its copy of the hidden states to its peer in the next, and each of the last stage the
    new tokens to its peer in the first."""
    if layout.pipeline == 1:
        return []
    hops, hidden = layout.pipeline - 1, step.hidden_bytes(config)
    return [
        Traffic("send", hops, hidden, layout.tensor, hops * hidden),
        Traffic("send", 1, step.sequences * RESULT_BYTES, layout.tensor, step.sequences * TOKEN_BYTES),
    ]
