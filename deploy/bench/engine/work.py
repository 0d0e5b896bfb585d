"""What a run cannot do without: the bytes that its steps must read, and the arithmetic they must do.

Weights count in the form in which they are held, once a step; keys and values once for each token that attends to
them. A multiplication and an addition count as two operations.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from deploy.bench.serve.outcome import Outcome
from deploy.plan.arithmetic import (
    attention_flops,
    decode_bytes,
    head_linear,
    kv_bytes_per_token,
    linear_flops,
    prefill_pairs,
)
from replicas.config import EngineConfig, ModelConfig

# In groups of 32 that share a scale of 16 bits, and in 4 bits a minimum, too. The head has 8 bits at least.
BYTES_OF_4_BITS = 4 / 8 + 4 / 32
BYTES_OF_8_BITS = 8 / 8 + 2 / 32


@dataclass(frozen=True, slots=True)
class Form:
    """How an engine holds numbers: `name` for people, the bytes of a weight in a layer and in the head, and of a key's
    or value's element, and the types in which its matrices may be multiplied."""

    name: str
    layer_bytes: float
    head_bytes: float
    itemsize: int
    products: tuple[torch.dtype, ...]


@dataclass(frozen=True, slots=True)
class Work:
    """Operations and bytes."""

    flops: float
    bytes: float


def form_of(config: EngineConfig) -> Form:
    """The form of an engine's own configuration, in which nothing is `auto` any more."""
    dtype = getattr(torch, config.dtype)
    if config.quantization == "none":
        # Some processors multiply 32 bits faster than 16.
        return Form(config.dtype, dtype.itemsize, dtype.itemsize, dtype.itemsize, (dtype, torch.float32))
    layer_bytes = BYTES_OF_4_BITS if config.quantization == "int4" else BYTES_OF_8_BITS
    name, products = f"{config.quantization}, {config.dtype}", (torch.int8, dtype, torch.float32)
    return Form(name, layer_bytes, BYTES_OF_8_BITS, dtype.itemsize, products)


def weights_read(model: ModelConfig, form: Form) -> float:
    """Bytes of weights that a decode step reads: all layers and the head, but of the embedding only some rows."""
    head = head_linear(model, 1).parameters
    return (decode_bytes(model, 1, 0, 0, 1) - head) * form.layer_bytes + head * form.head_bytes


def prefill_work(model: ModelConfig, form: Form, prompt: int, cached: int = 0) -> Work:
    """One prompt, all of whose tokens but the first `cached` are computed in one step."""
    flops = linear_flops(model, 1, prompt - cached, 1) + attention_flops(model, 1, _pairs(model, cached, prompt))
    return Work(flops, weights_read(model, form))


def decode_work(model: ModelConfig, form: Form, context: int) -> Work:
    """One further token of a sequence that is alone, behind `context` others."""
    read = weights_read(model, form) + _kv_read(model, form, context)
    flops = linear_flops(model, 1, 1, 1) + attention_flops(model, 1, _pairs(model, context, context + 1))
    return Work(flops, read)


def run_work(model: ModelConfig, form: Form, outcomes: Iterable[Outcome], steps: int) -> Work:
    """A whole run of `steps` steps."""
    flops, read = 0.0, steps * weights_read(model, form)
    for outcome in outcomes:
        prompt, end = outcome.prompt_tokens, outcome.prompt_tokens + outcome.output_tokens - 1
        flops += linear_flops(model, 1, end - outcome.cached_tokens, outcome.output_tokens)
        flops += attention_flops(model, 1, _pairs(model, outcome.cached_tokens, end))
        read += sum(_kv_read(model, form, context) for context in range(prompt, end))
    return Work(flops, read)


def _pairs(model: ModelConfig, start: int, end: int) -> int:
    """(query, key) pairs of the queries from `start` to `end`, over all layers."""
    return sum(prefill_pairs(end, window) - prefill_pairs(start, window) for window in model.sliding_windows)


def _kv_read(model: ModelConfig, form: Form, context: int) -> int:
    seen = sum(min(context, window) if window else context for window in model.sliding_windows)
    return kv_bytes_per_token(model, 1, 1, form.itemsize) * seen
