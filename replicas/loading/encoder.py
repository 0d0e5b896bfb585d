"""Loads BERT from a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open

from replicas.config import DTYPES, Dtype
from replicas.loading.errors import CheckpointError
from replicas.loading.fields import Fields
from replicas.loading.hf_config import read_json
from replicas.loading.safetensors import read_tables
from replicas.models.bert import Bert, BertConfig

ARCHITECTURES = ("BertModel",)
_PREFIX = "bert."
_UNUSED = ("pooler.", "cls.", "embeddings.position_ids")


def is_encoder(path: Path) -> bool:
    """Whether a folder holds a model that makes vectors and no tokens."""
    if not path.is_dir() or not (path / "config.json").is_file():
        return False
    names = read_json(path / "config.json").get("architectures")
    return isinstance(names, list) and any(name in ARCHITECTURES for name in names)


def read_bert_config(folder: Path) -> BertConfig:
    """Raises CheckpointError."""
    path = folder / "config.json"
    fields = Fields(path, read_json(path))
    if fields.get("hidden_act", "gelu") != "gelu":
        raise fields.error("hidden_act", "only gelu is supported")
    if fields.get("position_embedding_type", "absolute") != "absolute":
        raise fields.error("position_embedding_type", "only absolute positions are supported")
    config = BertConfig(
        vocab_size=fields.integer("vocab_size"),
        hidden_size=fields.integer("hidden_size"),
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=fields.num_layers("num_hidden_layers"),
        num_heads=fields.integer("num_attention_heads"),
        max_positions=fields.integer("max_position_embeddings"),
        num_types=fields.integer("type_vocab_size", 2),
        layer_norm_eps=fields.number("layer_norm_eps", 1e-12),
    )
    if config.hidden_size % config.num_heads:
        raise fields.error("num_attention_heads", f"must divide hidden_size, which is {config.hidden_size}")
    return config


def stored_dtype(folder: Path) -> Dtype:
    """What config.json says; float32 where it says nothing."""
    values = read_json(folder / "config.json")
    dtype: Dtype = values.get("dtype") or values.get("torch_dtype") or "float32"
    if dtype not in DTYPES:
        raise CheckpointError(f"{folder / 'config.json'}: dtype is {dtype!r}, but must be one of {', '.join(DTYPES)}")
    return dtype


def check_bert(folder: Path) -> None:
    """Hold the files' tensors against the model's, without reading any. Raises CheckpointError."""
    with torch.device("meta"):
        _locate(folder, Bert(read_bert_config(folder)))


def load_bert(folder: Path, dtype: torch.dtype, device: torch.device) -> Bert:
    """Raises CheckpointError that names the tensor at fault."""
    with torch.device("meta"):
        model = Bert(read_bert_config(folder)).to(dtype)
    model = model.to_empty(device=device).eval().requires_grad_(False)
    targets = dict(model.weights())
    for file, names in _locate(folder, model).items():
        with safe_open(file, framework="pt") as tensors:
            for name, stored in names.items():
                targets[name].copy_(tensors.get_tensor(stored))
    return model


def _locate(folder: Path, model: Bert) -> dict[Path, dict[str, str]]:
    """For each file, the tensors that are wanted from it: the model's name, and the file's."""
    wanted = {name: tuple(weight.shape) for name, weight in model.weights()}
    found: dict[Path, dict[str, str]] = {}
    for file, shapes in read_tables(folder).items():
        for stored, shape in shapes.items():
            name = stored.removeprefix(_PREFIX)
            if name.startswith(_UNUSED):
                continue
            if name not in wanted:
                raise CheckpointError(f"{file}: tensor {stored} has no place in this model")
            if shape != (expected := wanted.pop(name)):
                raise CheckpointError(
                    f"{file}: tensor {stored} has shape {shape}, but the configuration needs {expected}"
                )
            found.setdefault(file, {})[name] = stored
    if wanted:
        raise CheckpointError(f"{folder}: tensor {next(iter(wanted))} is missing")
    return found
