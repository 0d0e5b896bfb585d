"""From a configuration to the Serve application: one replica deployment a model, one gateway deployment before them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from ray.serve import Application

from cluster.embedding.deployment import embedder_deployment
from cluster.embedding.messages import EmbedderSpec
from cluster.gateway.deployment import gateway_deployment
from cluster.gateway.service import GatewaySettings
from cluster.gateway.settings import TextSettings
from cluster.ingress import Ingress
from cluster.replica import ReplicaSpec, replica_deployment
from deploy.config import MobulaConfig, to_embedding_config, to_engine_config
from deploy.door import door_settings
from deploy.task import makes_vectors

APPLICATION_NAME = "mobula"


def deployment_name(model_id: str) -> str:
    """Serve's names may not hold every character that a model id may."""
    return "model-" + re.sub(r"[^\w.-]", "-", model_id)


def build_application(
    config: MobulaConfig, paths: Mapping[str, Path], ingress: Ingress, bus_host: str = ""
) -> Application:
    """`paths` says where each model's files lie, by model id; `bus_host` where the processes meet (see ReplicaSpec)."""
    handles, embedders = {}, {}
    for model in config.models:
        if makes_vectors(model, paths[model.id]):
            section = model.embedding
            spec = EmbedderSpec(
                str(paths[model.id]), to_embedding_config(model), section.max_batch_size, section.batch_wait
            )
            embedder = embedder_deployment(deployment_name(model.id), model.replicas.min, spec)
            embedders[model.id] = embedder.bind(spec)
            continue
        engine = to_engine_config(model)
        deployment = replica_deployment(deployment_name(model.id), model.replicas.min, engine, model.parallel.strategy)
        handles[model.id] = deployment.bind(ReplicaSpec(str(paths[model.id]), engine, bus_host=bus_host))
    gateway = config.gateway
    settings = GatewaySettings(
        share_events=gateway.share_events,
        max_body_bytes=gateway.max_body,
        bus_host=bus_host,
        door=door_settings(config, os.environ),
        text={
            model.id: TextSettings(model.tool_parser, model.reasoning_parser, model.chat_template_override)
            for model in config.models
        },
    )
    return gateway_deployment(config.gateway.replicas).bind(handles, settings, ingress, embedders)
