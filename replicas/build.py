"""From a model's files to a running engine, stage by stage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from parallel.groups import RankGroup
from parallel.mesh import Mesh
from replicas.config import EngineConfig, ModelConfig
from replicas.engine import Engine, ServedModel
from replicas.executor import Executor, InProcessExecutor
from replicas.layers.attention import kv_bytes_per_block
from replicas.loading.checkpoint import Checkpoint, open_checkpoint
from replicas.loading.precision import Precision, resolve_precision, resolved
from replicas.messages import GenerateRequest
from replicas.models.layout import check_layout
from replicas.ranks.processes import RankProcesses
from replicas.ranks.start import Launch, start_ranks
from replicas.sampling.params import SamplingParams
from replicas.startup import OnStage, build_runner, stage, unheard

LOCALHOST = "127.0.0.1"
WARM_UP_PROMPT = 64
WARM_UP_REQUESTS = 4


def build_engine(
    path: str,
    config: EngineConfig,
    on_stage: OnStage = unheard,
    host: str = LOCALHOST,
    launch: Launch = RankProcesses,
) -> Engine:
    """An engine over as many ranks as the configuration says, warmed up. `on_stage` hears each stage's name and
    seconds. `launch` starts the ranks other than this one, which join it at `host`. Raises ValueError if the files or
    the configuration cannot be served."""
    device = torch.device(config.device)
    with stage("open the checkpoint", on_stage):
        checkpoint = open_checkpoint(Path(path))
        precision = resolve_precision(config, checkpoint)
        served = plan_capacity(checkpoint, config, precision)
        config = replace(config, kernels="compiled" if precision.compiled else "torch")
    executor: Executor
    if config.num_ranks == 1:
        group = RankGroup(Mesh(), device)
        executor = InProcessExecutor(build_runner(checkpoint, config, group, served.num_blocks, on_stage))
    else:
        executor = start_ranks(checkpoint, config, served.num_blocks, on_stage, host, launch)
    config = replace(
        resolved(config, precision),
        prefix_caching=config.prefix_caching and _keys_fit_all_prompts(checkpoint.config),
    )
    engine = Engine(config, served, executor)
    with stage(f"warm up, computing in {precision.name}", on_stage):
        warm_up(engine)
    return engine


def plan_capacity(checkpoint: Checkpoint, config: EngineConfig, precision: Precision) -> ServedModel:
    """How many KV blocks the memory of every rank holds, and how long a request may therefore become."""
    model = checkpoint.config
    check_layout(model, config.tensor_parallel, config.pipeline_parallel)
    ranks = [Mesh(config.tensor_parallel, config.pipeline_parallel, rank) for rank in range(config.num_ranks)]
    block_bytes = max(kv_bytes_per_block(model, mesh, config.block_size, precision.dtype) for mesh in ranks)
    num_blocks = config.kv_cache_memory // block_bytes
    if num_blocks < 1:
        raise ValueError(
            f"kv_cache_memory is {config.kv_cache_memory} bytes, but one block of {config.block_size} "
            f"tokens takes {block_bytes} bytes: raise it or lower block_size"
        )
    if config.max_model_len > model.max_positions:
        raise ValueError(
            f"max_model_len is {config.max_model_len}, but the model was made for at most {model.max_positions} tokens"
        )
    max_model_len = min(config.max_model_len or model.max_positions, num_blocks * config.block_size)
    name = f"{checkpoint.path.name}/{precision.name}"
    return ServedModel(name, model.vocab_size, max_model_len, model.eos_token_ids, num_blocks)


def _keys_fit_all_prompts(model: ModelConfig) -> bool:
    """Under dynamic rope scaling a prefix's keys depend on the length of the prompt they were computed in."""
    return model.rope_scaling is None or model.rope_scaling.kind != "dynamic"


def warm_up(engine: Engine) -> None:
    """Run a small prefill and some decodes, so that the first request does not pay for first calls."""
    length = min(WARM_UP_PROMPT, engine.model.max_model_len - 2)
    if length < 1:
        return
    for index in range(WARM_UP_REQUESTS):
        sampling = SamplingParams(max_tokens=2, temperature=float(index % 2), ignore_eos=True)
        engine.add(GenerateRequest(f"warm-up {index}", (index,) * length, sampling))
    while engine.has_work:
        engine.step()
    engine.reset()
