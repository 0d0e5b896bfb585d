"""From a model's files to an embedding model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from parallel.mesh import Mesh
from replicas.build import plan_capacity
from replicas.config import Dtype, EngineConfig
from replicas.embedding.config import EmbeddingConfig, Pooling
from replicas.embedding.encoders import BertEncoder, DecoderEncoder
from replicas.embedding.files import read_vector_files
from replicas.embedding.model import MOST_SEQUENCES, EmbeddingModel, Encoder, VectorShape
from replicas.loading.checkpoint import load_model, open_checkpoint
from replicas.loading.encoder import check_bert, is_encoder, load_bert, read_bert_config, stored_dtype
from replicas.loading.precision import resolve_precision
from replicas.startup import OnStage, stage, unheard

_WARM_UP_TOKENS = 64


def plan_vectors(path: Path, config: EmbeddingConfig) -> VectorShape:
    """What the model's vectors will be, from the headers of its files alone. Raises ValueError for what cannot be
    served."""
    files, engine = read_vector_files(path), config.engine
    pooling: Pooling
    if engine.num_ranks > 1:
        raise ValueError("embedding models run on one rank: parallel.tensor and parallel.pipeline must be 1")
    if is_encoder(path):
        check_bert(path)
        bert = read_bert_config(path)
        pooling, size, longest, vocab_size = "mean", bert.hidden_size, bert.max_positions, bert.vocab_size
        dtype: str = _bert_dtype(path, engine)
        if engine.quantization in ("int4", "int8"):
            raise ValueError(f"quantization {engine.quantization} is for decoders; this model is an encoder")
    else:
        checkpoint = open_checkpoint(path)
        precision = resolve_precision(engine, checkpoint)
        served = plan_capacity(checkpoint, engine, precision)
        pooling, size, longest = "last", checkpoint.config.hidden_size, served.max_model_len
        vocab_size, dtype = served.vocab_size, precision.name
    for dimension in config.dimensions:
        if not 0 < dimension <= size:
            raise ValueError(f"embedding.dimensions has {dimension}, but the model's vectors have {size} elements")
    if engine.max_model_len > longest:
        raise ValueError(f"max_model_len is {engine.max_model_len}, but this model takes at most {longest} tokens")
    return VectorShape(
        pooling=config.pooling or files.pooling or pooling,
        size=size,
        max_model_len=engine.max_model_len or min(longest, files.max_tokens or longest),
        vocab_size=vocab_size,
        dtype=dtype,
        dimensions=config.dimensions or files.dimensions,
        any_dimension=files.any_dimension and not config.dimensions,
    )


def open_embedding_model(path: Path, config: EmbeddingConfig, on_stage: OnStage = unheard) -> EmbeddingModel:
    """Loaded and warmed up. Raises ValueError if the files or the configuration cannot be served."""
    with stage("open the checkpoint", on_stage):
        shape = plan_vectors(path, config)
    with stage("load the weights", on_stage):
        encoder = _bert(path, config.engine) if is_encoder(path) else _decoder(path, config.engine, shape)
    model = EmbeddingModel(encoder, shape, config.engine.max_batched_tokens)
    with stage("warm up", on_stage):
        model.embed([[0] * min(_WARM_UP_TOKENS, shape.max_model_len)])
    return model


def _bert_dtype(path: Path, config: EngineConfig) -> Dtype:
    """`auto` computes in what the files hold, but on CPUs in float32."""
    if config.dtype != "auto":
        return config.dtype
    return "float32" if config.device == "cpu" else stored_dtype(path)


def _bert(path: Path, config: EngineConfig) -> Encoder:
    device = torch.device(config.device)
    return BertEncoder(load_bert(path, getattr(torch, _bert_dtype(path, config)), device), device)


def _decoder(path: Path, config: EngineConfig, shape: VectorShape) -> Encoder:
    checkpoint, mesh, device = open_checkpoint(path), Mesh(), torch.device(config.device)
    precision = resolve_precision(replace(config, record_decodes=False), checkpoint)
    model = load_model(checkpoint, mesh, precision.dtype, device, precision.compute(checkpoint.config, mesh))
    num_tokens = max(shape.max_model_len, config.max_batched_tokens)
    num_blocks = -(-num_tokens // config.block_size) + MOST_SEQUENCES  # each sequence leaves a part of a block free
    return DecoderEncoder(model, num_blocks, config.block_size, precision.dtype, device)
