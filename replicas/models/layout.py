"""How a model divides over a mesh: which sizes are possible, and which layers a stage computes."""

from __future__ import annotations

from parallel.mesh import Mesh
from parallel.pipeline import split_layers
from replicas.config import ModelConfig


def check_layout(config: ModelConfig, tensor: int, pipeline: int) -> None:
    """Refuse a mesh that cannot hold the model, and name the sizes that can."""
    sizes = tensor_sizes(config)
    if tensor not in sizes:
        raise ValueError(
            f"tensor parallelism over {tensor} ranks can't divide the model's {config.num_heads} attention heads, "
            f"{config.num_kv_heads} KV heads and intermediate size {config.intermediate_size}; "
            f"valid sizes are {', '.join(map(str, sizes))}"
        )
    if pipeline > config.num_layers:
        raise ValueError(
            f"pipeline parallelism over {pipeline} stages is more than the model's {config.num_layers} layers"
        )


def tensor_sizes(config: ModelConfig) -> list[int]:
    """Every number of ranks that divides all layers. KV heads are divided, or else copied evenly."""
    return [
        ranks
        for ranks in range(1, config.num_heads + 1)
        if config.num_heads % ranks == 0
        and config.intermediate_size % ranks == 0
        and (config.num_kv_heads % ranks == 0 or ranks % config.num_kv_heads == 0)
    ]


def stage_layers(config: ModelConfig, mesh: Mesh) -> range:
    """The layers of this rank's stage. Cost is counted in weights that a decode step reads: all of a layer and of
    the head, but only a row of the embedding for each token."""
    attention = config.hidden_size * config.head_dim * 2 * (config.num_heads + config.num_kv_heads)
    layer_cost = attention + 3 * config.hidden_size * config.intermediate_size
    head_cost = config.vocab_size * config.hidden_size
    stages = split_layers(config.num_layers, mesh.pipeline, layer_cost, config.hidden_size, head_cost)
    return stages[mesh.pipeline_rank]
