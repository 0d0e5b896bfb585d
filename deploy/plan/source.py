"""From what a person calls a model to its shape. Nothing is fetched but catalogue models, which are small."""

from __future__ import annotations

from pathlib import Path

from deploy.catalog import CatalogEntry, HubModel, entries, identify
from deploy.errors import CatalogError, UserError
from deploy.plan.shapes import SHAPES
from deploy.preflight import fetch_model
from replicas.config import ModelConfig


def model_shape(source: str, quiet: bool) -> ModelConfig:
    """A well-known shape, a catalogue model, a folder (its config.json is enough) or a .gguf file."""
    if source.lower() in SHAPES:
        return SHAPES[source.lower()]
    try:
        found = identify(source)
    except CatalogError as error:
        raise UserError(f"{error}; {_known()}") from error
    if isinstance(found, HubModel):
        raise UserError(
            f"{source} is on the model hub, where plan doesn't look; give a folder with its config.json; {_known()}"
        )
    return _read(fetch_model(source, quiet) if isinstance(found, CatalogEntry) else found)


def _read(path: Path) -> ModelConfig:
    from replicas.loading.checkpoint import open_checkpoint
    from replicas.loading.hf_config import read_hf_config

    try:
        return read_hf_config(path) if path.is_dir() else open_checkpoint(path).config
    except (ValueError, OSError) as error:
        raise UserError(f"the model cannot be planned for: {error}") from error


def _known() -> str:
    return f"known shapes are {', '.join([*SHAPES, *(entry.name for entry in entries())])}"
