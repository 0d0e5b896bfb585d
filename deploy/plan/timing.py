"""Predicted times of a layout's steps: a sum of measured kernels and messages, so a floor.

Left out: the host between steps, sampling, idle gaps between kernels, and any overlap of messages with computing.
"""

from __future__ import annotations

from collections import Counter

from deploy.plan.arithmetic import head_linear, layer_linears, prefill_pairs
from deploy.plan.devices import GPUS_PER_NODE
from deploy.plan.layout import Layout, Stage, local_kv_heads, stages
from deploy.plan.tables import ITEMSIZE, KernelTimes
from replicas.config import ModelConfig

CHUNK = 2048  # tokens of a prompt that one step computes: the engine's default max_batched_tokens


def decode_seconds(config: ModelConfig, layout: Layout, times: KernelTimes, batch: int, context: int) -> float:
    """From one token of a request to its next, with `batch` requests of `context` tokens decoding.

    A pipeline of p stages has p batches in flight. Each request then waits for p ticks of the slowest stage."""
    share = -(-batch // layout.pipeline)
    attention = sum(
        layers * times.decode_attention(_heads(config, layout), share, min(context, window or context))
        for window, layers in Counter(config.sliding_windows).items()
    )
    slowest = max(_stage_seconds(config, layout, times, share, share, attention / config.num_layers))
    return layout.pipeline * (slowest + _hop_seconds(config, layout, times, share))


def prefill_seconds(config: ModelConfig, layout: Layout, times: KernelTimes, prompt: int) -> float:
    """From a prompt's start to its first token on an idle replica: chunk after chunk through all stages, for the engine
    never has two steps with the same sequence in flight."""
    chunks = -(-prompt // CHUNK)
    tokens = -(-prompt // chunks)
    whole = times.prefill_attention(_heads(config, layout), prompt)
    seen = sum(prefill_pairs(prompt, window) for window in config.sliding_windows) / config.num_layers
    attention = whole * seen / prefill_pairs(prompt, 0) / chunks
    through = sum(_stage_seconds(config, layout, times, tokens, 1, attention))
    return chunks * (through + (layout.pipeline - 1) * _hop_seconds(config, layout, times, tokens))


def _stage_seconds(
    config: ModelConfig, layout: Layout, times: KernelTimes, tokens: int, rows: int, attention: float
) -> list[float]:
    """Each stage's computing in a step of `tokens` tokens and `rows` sampled ones; `attention`: seconds a layer."""
    layer = attention + _layer_seconds(config, layout.tensor, times, tokens)
    return [
        stage.layers * layer + _ends_seconds(config, layout.tensor, stage, times, tokens, rows)
        for stage in stages(config, layout.pipeline)
    ]


def _hop_seconds(config: ModelConfig, layout: Layout, times: KernelTimes, tokens: int) -> float:
    """From one stage to the next."""
    if layout.pipeline == 1:
        return 0.0
    return times.send(tokens * config.hidden_size * ITEMSIZE, layout.gpus <= GPUS_PER_NODE)


def _layer_seconds(config: ModelConfig, tensor: int, times: KernelTimes, tokens: int) -> float:
    """All of a layer but attention. Two norms with their residual sums, the rotation that writes the cache, and the
    activation are taken as one kernel each."""
    linears = layer_linears(config, tensor)
    qkv, _, gate_up, down = linears
    gemms = sum(times.gemm(tokens, linear.in_features, linear.out_features) for linear in linears)
    norms = 2 * times.streaming(4 * tokens * config.hidden_size * ITEMSIZE)
    rotation = times.streaming(2 * tokens * qkv.out_features * ITEMSIZE)
    activation = times.streaming(tokens * (gate_up.out_features + down.in_features) * ITEMSIZE)
    return gemms + norms + rotation + activation + 2 * _all_reduce_seconds(config, tensor, times, tokens)


def _ends_seconds(config: ModelConfig, tensor: int, stage: Stage, times: KernelTimes, tokens: int, rows: int) -> float:
    """The embedding of the first stage, the head of the last."""
    seconds = 0.0
    if stage.first:
        seconds += times.streaming(2 * tokens * config.hidden_size * ITEMSIZE)
        seconds += _all_reduce_seconds(config, tensor, times, tokens)
    if stage.last:
        head = head_linear(config, tensor)
        seconds += times.gemm(rows, head.in_features, head.out_features)
        seconds += times.all_gather(tensor, rows * head.out_features * ITEMSIZE) if tensor > 1 else 0.0
    return seconds


def _all_reduce_seconds(config: ModelConfig, tensor: int, times: KernelTimes, tokens: int) -> float:
    return times.all_reduce(tensor, tokens * config.hidden_size * ITEMSIZE) if tensor > 1 else 0.0


def _heads(config: ModelConfig, layout: Layout) -> tuple[int, int, int]:
    return config.num_heads // layout.tensor, local_kv_heads(config, layout.tensor), config.head_dim
