"""What follows from a model's shape alone: parameters, bytes and floating-point operations of one rank of a layout.

Sizes are those of the largest rank of a stage. A multiplication and an addition count as two operations.
"""

from __future__ import annotations

from dataclasses import dataclass

from deploy.plan.layout import Layout, Stage, local_kv_heads, stages
from replicas.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Linear:
    """One matrix multiplication of a rank."""

    in_features: int
    out_features: int
    biased: bool = False

    @property
    def parameters(self) -> int:
        return self.in_features * self.out_features + (self.out_features if self.biased else 0)

    def flops(self, tokens: int) -> int:
        return 2 * tokens * self.in_features * self.out_features


def layer_linears(config: ModelConfig, tensor: int) -> tuple[Linear, Linear, Linear, Linear]:
    """Packed projections of queries, keys and values; of the attention's output; of gate and up; down."""
    hidden, heads = config.hidden_size, config.num_heads // tensor
    qkv = (heads + 2 * local_kv_heads(config, tensor)) * config.head_dim
    inner = config.intermediate_size // tensor
    return (
        Linear(hidden, qkv, config.qkv_bias),
        Linear(heads * config.head_dim, hidden, config.o_bias),
        Linear(hidden, 2 * inner, config.mlp_bias),
        Linear(inner, hidden, config.mlp_bias),
    )


def head_linear(config: ModelConfig, tensor: int) -> Linear:
    return Linear(config.hidden_size, -(-config.vocab_size // tensor))


def parameters(config: ModelConfig, tensor: int, stage: Stage) -> int:
    """On one rank. A tied head is a copy of the embedding where another stage holds that."""
    table = head_linear(config, tensor).parameters
    tables = int(stage.first) + int(stage.last and not (stage.first and config.tie_word_embeddings))
    final_norm = config.hidden_size if stage.last else 0
    return stage.layers * _layer_parameters(config, tensor) + tables * table + final_norm


def model_parameters(config: ModelConfig) -> int:
    return parameters(config, 1, Stage(config.num_layers, first=True, last=True))


def weight_bytes(config: ModelConfig, layout: Layout, itemsize: int) -> int:
    """On the rank that holds most."""
    return max(parameters(config, layout.tensor, stage) for stage in stages(config, layout.pipeline)) * itemsize


def kv_bytes_per_token(config: ModelConfig, tensor: int, layers: int, itemsize: int) -> int:
    """Keys and values of one token in `layers` layers on one rank."""
    return 2 * layers * local_kv_heads(config, tensor) * config.head_dim * itemsize


def linear_flops(config: ModelConfig, tensor: int, tokens: int, sampled: int) -> int:
    """One rank's matrix multiplications by weights, over all layers and the head."""
    per_layer = sum(linear.flops(tokens) for linear in layer_linears(config, tensor))
    return config.num_layers * per_layer + head_linear(config, tensor).flops(sampled)


def attention_flops(config: ModelConfig, tensor: int, pairs: int) -> int:
    """Scores and weighted sums of one rank for `pairs` of a query and a key that it sees, counted over all layers."""
    return 4 * pairs * (config.num_heads // tensor) * config.head_dim


def prefill_pairs(prompt: int, window: int) -> int:
    """How many (query, key) pairs a causal layer computes over a prompt; `window` 0 sees all."""
    full = min(window, prompt) if window else prompt
    return full * (full + 1) // 2 + (prompt - full) * full


def decode_bytes(config: ModelConfig, tensor: int, batch: int, context: int, itemsize: int) -> int:
    """What one rank reads in a decode step: all weights but the embedding's once, each request's keys and values."""
    weights = config.num_layers * _layer_parameters(config, tensor) + head_linear(config, tensor).parameters
    seen = (min(context, window) if window else context for window in config.sliding_windows)
    return weights * itemsize + batch * kv_bytes_per_token(config, tensor, 1, itemsize) * sum(seen)


def activation_bytes(config: ModelConfig, tensor: int, tokens: int, sampled: int, itemsize: int) -> int:
    """An estimate of the most that a step of `tokens` holds at once: residual, normalised input, gate, up and
    their product; or, at the end, the logits of `sampled` rows, gathered and in float32."""
    inner = config.intermediate_size // tensor
    mlp = tokens * (2 * config.hidden_size + 4 * inner) * itemsize
    logits = sampled * config.vocab_size * (2 * itemsize + 4) + 2 * tokens * config.hidden_size * itemsize
    return max(mlp, logits)


def _layer_parameters(config: ModelConfig, tensor: int) -> int:
    norms = 2 * config.hidden_size + (2 * config.head_dim if config.qk_norm else 0)
    return sum(linear.parameters for linear in layer_linears(config, tensor)) + norms
