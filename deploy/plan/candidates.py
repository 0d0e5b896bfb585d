"""Each layout with what it holds and what it would take, and which one to choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from deploy.plan.arithmetic import activation_bytes, kv_bytes_per_token, parameters, weight_bytes
from deploy.plan.devices import GPUS_PER_NODE, Gpu, reserved_bytes
from deploy.plan.layout import Layout, layouts, stages
from deploy.plan.tables import KernelTimes
from deploy.plan.timing import CHUNK, decode_seconds, prefill_seconds
from replicas.config import ModelConfig

# How much more throughput a larger layout must promise to be worth its ranks: more than the predictions may be off.
WORTH_IT = 0.25


@dataclass(frozen=True, slots=True)
class Demand:
    """What all GPUs together are to serve, whatever the layout: `batch` running requests of `context` tokens each,
    shared by the replicas, and prompts of `prompt` tokens. `itl` and `ttft` are objectives in seconds."""

    batch: int
    context: int
    prompt: int
    itl: float | None = None
    ttft: float | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """One layout. Bytes are those of the fullest rank, `kv_bytes` what is left there for the cache (negative: what
    lacks), `kv_tokens` what a replica can hold. `share` is its part of the demanded requests, `requests` how many of
    those run at once; times and the tokens/s of all GPUs are for these, and None where nothing could be predicted."""

    layout: Layout
    replicas: int
    weight_bytes: int
    activation_bytes: int
    kv_bytes: int
    kv_tokens: int
    share: int
    requests: int
    itl: float | None = None
    ttft: float | None = None
    tokens_per_second: float | None = None

    @property
    def holds(self) -> bool:
        """Whether its share of the requests runs at once."""
        return self.requests == self.share

    def keeps(self, demand: Demand) -> bool:
        """Whether it holds the requests and keeps the objectives that were given."""
        pairs = ((self.itl, demand.itl), (self.ttft, demand.ttft))
        return self.holds and all(limit is None or (time is not None and time <= limit) for time, limit in pairs)


def candidates(
    config: ModelConfig, gpu: Gpu, gpus: int, itemsize: int, demand: Demand, times: KernelTimes | None
) -> list[Candidate]:
    """All layouts that the model allows, smallest first."""
    allowed = sorted(layouts(config, gpus, GPUS_PER_NODE), key=lambda layout: (layout.gpus, layout.pipeline))
    return [_candidate(config, gpu, gpus, itemsize, demand, times, layout) for layout in allowed]


def recommended(found: Sequence[Candidate], demand: Demand) -> Candidate | None:
    """Of those that keep the demand, and that none of them beats by much in throughput, the one with most replicas;
    of equal replicas, the fastest."""
    good = [candidate for candidate in found if candidate.keeps(demand)]
    most = max((candidate.tokens_per_second or 0.0 for candidate in good), default=0.0)
    near = [candidate for candidate in good if (candidate.tokens_per_second or 0.0) * (1 + WORTH_IT) >= most]
    return min(near, key=lambda each: (-each.replicas, each.itl or 0.0, each.layout.gpus), default=None)


def _candidate(
    config: ModelConfig, gpu: Gpu, gpus: int, itemsize: int, demand: Demand, times: KernelTimes | None, layout: Layout
) -> Candidate:
    replicas = gpus // layout.gpus
    share = -(-demand.batch // replicas)
    weights = weight_bytes(config, layout, itemsize)
    activations = activation_bytes(config, layout.tensor, max(CHUNK, share), share, itemsize)
    memory = gpu.memory - reserved_bytes(layout.gpus) - activations
    kv_tokens = max(_kv_tokens(config, layout, memory, itemsize), 0)
    requests = min(share, kv_tokens // demand.context)
    candidate = Candidate(
        layout, replicas, weights, activations, memory - weights, kv_tokens, share=share, requests=requests
    )
    if times is None or requests == 0:
        return candidate
    itl = decode_seconds(config, layout, times, requests, demand.context)
    return replace(
        candidate,
        itl=itl,
        ttft=prefill_seconds(config, layout, times, demand.prompt),
        tokens_per_second=min(demand.batch, requests * replicas) / itl,
    )


def _kv_tokens(config: ModelConfig, layout: Layout, memory: int, itemsize: int) -> int:
    """Blocks are numbered alike on all ranks, so the fullest stage decides."""
    return min(
        (memory - parameters(config, layout.tensor, stage) * itemsize)
        // kv_bytes_per_token(config, layout.tensor, stage.layers, itemsize)
        for stage in stages(config, layout.pipeline)
    )
