"""What a folder says of the way its model makes vectors: the files that sentence-transformers writes beside a model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replicas.embedding.config import Pooling
from replicas.loading.errors import CheckpointError
from replicas.loading.hf_config import read_json

_MODES: dict[str, Pooling] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}
_MODULES = ("Transformer", "Pooling", "Normalize")


@dataclass(frozen=True, slots=True)
class VectorFiles:
    """None and empty where nothing is said. `dimensions` are the lengths to which vectors may be cut, as the model was
    trained for (Kusupati et al., 2022); `any_dimension`: it was trained for all of them."""

    pooling: Pooling | None = None
    max_tokens: int | None = None
    dimensions: tuple[int, ...] = ()
    any_dimension: bool = False


def read_vector_files(path: Path) -> VectorFiles:
    """Raises CheckpointError for a folder whose vectors are made by more than pooling."""
    if not path.is_dir():
        return VectorFiles()
    config = read_json(path / "config.json")
    _check_modules(path / "modules.json")
    return VectorFiles(
        pooling=_pooling(path / "1_Pooling" / "config.json"),
        max_tokens=_max_tokens(path / "sentence_bert_config.json"),
        dimensions=tuple(config.get("matryoshka_dimensions") or ()),
        any_dimension=bool(config.get("is_matryoshka")) and not config.get("matryoshka_dimensions"),
    )


def _check_modules(path: Path) -> None:
    if not path.is_file():
        return
    for module in json.loads(path.read_bytes()):
        kind = str(module.get("type")).rpartition(".")[2]
        if kind not in _MODULES:
            raise CheckpointError(f"{path}: the module {kind} is not supported; known are {', '.join(_MODULES)}")


def _pooling(path: Path) -> Pooling | None:
    if not path.is_file():
        return None
    values: dict[str, Any] = read_json(path)
    chosen = [name for name, value in values.items() if name.startswith("pooling_mode_") and value is True]
    if len(chosen) != 1 or chosen[0] not in _MODES:
        raise CheckpointError(f"{path}: pools by {' and '.join(chosen) or 'nothing'}, which is not supported")
    return _MODES[chosen[0]]


def _max_tokens(path: Path) -> int | None:
    if not path.is_file():
        return None
    length = read_json(path).get("max_seq_length")
    if length is not None and (type(length) is not int or length < 1):
        raise CheckpointError(f"{path}: max_seq_length is {length!r}, but must be a positive integer")
    return length
