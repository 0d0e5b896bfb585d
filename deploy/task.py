"""Whether a model makes text or vectors."""

from __future__ import annotations

from pathlib import Path

from deploy.config import ModelSection
from deploy.errors import UserError


def makes_vectors(model: ModelSection, path: Path) -> bool:
    """`path` is where its files lie. Raises UserError for an encoder that is to make text."""
    from replicas.loading.encoder import is_encoder

    if model.task == "generate" and is_encoder(path):
        raise UserError(f"the model {model.id} is an encoder, which makes no text: its task must be embed or auto")
    return model.task == "embed" or (model.task == "auto" and is_encoder(path))
