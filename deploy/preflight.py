"""What can go wrong is found before Ray starts: models that are not there or do not open, an address that is taken."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.catalog import CatalogEntry, HubModel, identify, resolve
from deploy.config import MobulaConfig, ModelSection, to_embedding_config, to_engine_config
from deploy.errors import UserError
from deploy.progress import download_bar
from deploy.task import makes_vectors

if TYPE_CHECKING:
    from replicas.config import ModelConfig
    from replicas.embedding.model import VectorShape


@dataclass(frozen=True, slots=True)
class CheckedModel:
    """What a look at a model's files found; `path` is None if it is not on this machine yet, and so are `config` and
    `vectors`, of which a model has one."""

    id: str
    source: str
    path: Path | None = None
    config: ModelConfig | None = None
    vectors: VectorShape | None = None


def check_models(config: MobulaConfig) -> list[CheckedModel]:
    """Open every model that is on this machine, and fetch nothing. Raises UserError at one that cannot be served."""
    return [_check(model) for model in config.models]


def fetch_models(config: MobulaConfig, quiet: bool = False) -> dict[str, Path]:
    """Where each model's files lie, by model id: fetched if they were not on this machine yet, and opened once."""
    paths = {model.id: fetch_model(model.source, quiet) for model in config.models}
    for model in config.models:
        _open(model, paths[model.id])
    return paths


def fetch_model(source: str, quiet: bool) -> Path:
    """Where the model's files lie, with a bar that shows how they come."""
    if quiet:
        return resolve(source)
    with download_bar(source) as progress:
        return resolve(source, progress)


def check_address(host: str, port: int) -> None:
    """Raise UserError unless a server can listen on this address."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UserError(f"port {port} on {host} is in use by another program; choose one with --port") from error
        raise UserError(f"cannot listen on {host} port {port}: {error.strerror}") from error


def _check(model: ModelSection) -> CheckedModel:
    match identify(model.source):
        case CatalogEntry(cached=False) | HubModel():
            return CheckedModel(model.id, model.source)
        case _:
            return _open(model, resolve(model.source))


def _open(model: ModelSection, path: Path) -> CheckedModel:
    from replicas.build import plan_capacity
    from replicas.loading.checkpoint import open_checkpoint
    from replicas.loading.precision import resolve_precision
    from replicas.text.tokenizer import Tokenizer

    engine = to_engine_config(model)
    try:
        if makes_vectors(model, path):
            return _open_embedder(model, path)
        checkpoint = open_checkpoint(path)
        Tokenizer.open(path)
        plan_capacity(checkpoint, engine, resolve_precision(engine, checkpoint))
    except (ValueError, OSError) as error:
        raise UserError(f"the model {model.id} cannot be served: {error}") from error
    return CheckedModel(model.id, model.source, path, checkpoint.config)


def _open_embedder(model: ModelSection, path: Path) -> CheckedModel:
    """Raises ValueError for one that cannot be served."""
    from replicas.embedding.open import plan_vectors
    from replicas.text.text_tokenizer import open_text_tokenizer

    open_text_tokenizer(path)
    return CheckedModel(model.id, model.source, path, vectors=plan_vectors(path, to_embedding_config(model)))
