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


@dataclass(frozen=True, slots=True)
class Demand:
    """What a replica is to serve: `batch` running requests of `context` tokens each, prompts of `prompt` tokens.
    `itl` and `ttft` are objectives in seconds."""

    batch: int
    context: int
    prompt: int
    itl: float | None = None
    ttft: float | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """One layout. Bytes are those of the fullest rank, `kv_bytes` what is left there for the cache (negative: what
    lacks), `kv_tokens` what the whole replica can hold. `requests` is how many of the demanded ones run at once; the
    times hold for these, and are None where nothing could be predicted."""

    layout: Layout
    replicas: int
    weight_bytes: int
    activation_bytes: int
    kv_bytes: int
    kv_tokens: int
    requests: int
    itl: float | None = None
    ttft: float | None = None

    @property
    def fits(self) -> bool:
        return self.requests > 0

    @property
    def tokens_per_second_per_gpu(self) -> float | None:
        return self.requests / self.itl / self.layout.gpus if self.itl else None

    def meets(self, demand: Demand) -> bool:
        """Whether it holds all demanded requests and keeps the objectives that were given."""
        pairs = ((self.itl, demand.itl), (self.ttft, demand.ttft))
        kept = all(limit is None or (time is not None and time <= limit) for time, limit in pairs)
        return self.requests == demand.batch and kept


def candidates(
    config: ModelConfig, gpu: Gpu, gpus: int, itemsize: int, demand: Demand, times: KernelTimes | None
) -> list[Candidate]:
    """All layouts that the model allows, smallest first."""
    allowed = sorted(layouts(config, gpus, GPUS_PER_NODE), key=lambda layout: (layout.gpus, layout.pipeline))
    return [_candidate(config, gpu, gpus, itemsize, demand, times, layout) for layout in allowed]


def recommended(found: Sequence[Candidate], demand: Demand) -> Candidate | None:
    """Of those that meet the demand, the one that gives most replicas; then the lowest ITL, or else the fewest GPUs,
    since GPUs that a smaller layout leaves idle help nobody."""
    good = [candidate for candidate in found if candidate.meets(demand)]
    return min(good, key=lambda each: (-each.replicas, each.itl or 0.0, each.layout.gpus), default=None)


def _candidate(
    config: ModelConfig, gpu: Gpu, gpus: int, itemsize: int, demand: Demand, times: KernelTimes | None, layout: Layout
) -> Candidate:
    weights = weight_bytes(config, layout, itemsize)
    activations = activation_bytes(config, layout.tensor, max(CHUNK, demand.batch), demand.batch, itemsize)
    memory = gpu.memory - reserved_bytes(layout.gpus) - activations
    kv_tokens = max(_kv_tokens(config, layout, memory, itemsize), 0)
    candidate = Candidate(
        layout,
        replicas=gpus // layout.gpus,
        weight_bytes=weights,
        activation_bytes=activations,
        kv_bytes=memory - weights,
        kv_tokens=kv_tokens,
        requests=min(demand.batch, kv_tokens // demand.context),
    )
    if times is None or not candidate.fits:
        return candidate
    itl = decode_seconds(config, layout, times, candidate.requests, demand.context)
    return replace(candidate, itl=itl, ttft=prefill_seconds(config, layout, times, demand.prompt))


def _kv_tokens(config: ModelConfig, layout: Layout, memory: int, itemsize: int) -> int:
    """Blocks are numbered alike on all ranks, so the fullest stage decides."""
    return min(
        (memory - parameters(config, layout.tensor, stage) * itemsize)
        // kv_bytes_per_token(config, layout.tensor, stage.layers, itemsize)
        for stage in stages(config, layout.pipeline)
    )
