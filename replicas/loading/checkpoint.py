"""A model's files, opened: what they say the model is, and its tensors by their Hugging Face names.

Opening reads headers only and refuses, with file and tensor named, all that can be known to be wrong from them.
Loading then reads each rank's slices straight into the model's memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import torch

from parallel.mesh import Mesh
from parallel.sharding import WeightSlot
from replicas.config import Dtype, ModelConfig
from replicas.layers.compute import TORCH, Compute
from replicas.loading.errors import CheckpointError
from replicas.loading.gguf import GgufCheckpoint
from replicas.loading.safetensors import SafetensorsCheckpoint
from replicas.models.llama import CausalLM
from replicas.models.registry import build_model

_READERS = 2
_NAMES_SHOWN = 3


class Checkpoint(Protocol):
    """`shapes` holds every tensor that must find its place in the model, under the name the model uses."""

    @property
    def path(self) -> Path: ...

    @property
    def config(self) -> ModelConfig: ...

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...

    def location(self, name: str) -> str:
        """The file that holds, or should hold, the tensor, and its name there; for messages."""

    def bits(self, name: str) -> int | None:
        """In how many bits a weight's codes are stored; None where the tensor is not quantized."""

    def read_into(self, name: str, slot: WeightSlot) -> None:
        """Copy this rank's slice of the tensor to where it belongs. Called from several threads."""


def open_checkpoint(path: Path) -> Checkpoint:
    """A Hugging Face folder or a .gguf file."""
    if not path.exists():
        raise CheckpointError(f"{path}: no such file or folder")
    checkpoint = SafetensorsCheckpoint.open(path) if path.is_dir() else GgufCheckpoint.open(path)
    _check_heads(path, checkpoint.config)
    _check_tensors(checkpoint)
    return checkpoint


def load_model(
    checkpoint: Checkpoint, mesh: Mesh, dtype: torch.dtype, device: torch.device, compute: Compute = TORCH
) -> CausalLM:
    """The model with this rank's weights. Beyond them, memory holds at most one tensor a reader."""
    model = build_model(checkpoint.config, mesh, dtype, device, compute)
    with ThreadPoolExecutor(_READERS) as readers:
        reads = [readers.submit(checkpoint.read_into, name, slot) for name, slot in model.weight_slots().items()]
        for read in reads:
            read.result()
    return model


def dtype_name(dtype: torch.dtype) -> Dtype:
    """The configuration's word for a dtype."""
    name: Dtype = str(dtype).removeprefix("torch.")  # type: ignore[assignment]
    return name


def resolve_dtype(dtype: Dtype, config: ModelConfig, device: torch.device, fast_bfloat16: bool = False) -> torch.dtype:
    """`auto` is the checkpoint's own dtype, but on CPUs: there float32, or bfloat16 in place of a narrow type where
    that is fast."""
    if dtype == "auto":
        dtype = config.dtype
        if device.type == "cpu":
            dtype = "bfloat16" if fast_bfloat16 and dtype != "float32" else "float32"
    resolved = getattr(torch, dtype)
    assert isinstance(resolved, torch.dtype)
    return resolved


def _check_heads(path: Path, config: ModelConfig) -> None:
    if config.num_heads % config.num_kv_heads:
        raise CheckpointError(f"{path}: {config.num_heads} query heads can't share {config.num_kv_heads} KV heads")
    if config.head_dim % 2:
        raise CheckpointError(f"{path}: heads of odd size {config.head_dim} can't be rotated")


def _check_tensors(checkpoint: Checkpoint) -> None:
    """Hold the file's table of tensors against the model's, without memory for either."""
    model = build_model(checkpoint.config, Mesh(), torch.float32, torch.device("meta"))
    expected = {name: slot.shape for name, slot in model.weight_slots().items()}
    if missing := [name for name in expected if name not in checkpoint.shapes]:
        raise CheckpointError(f"{checkpoint.location(missing[0])} is missing{_others(missing)}")
    if surplus := [name for name in checkpoint.shapes if name not in expected]:
        raise CheckpointError(
            f"{checkpoint.location(surplus[0])} has no place in {checkpoint.config.architecture}{_others(surplus)}"
        )
    for name, shape in expected.items():
        if checkpoint.shapes[name] != shape:
            raise CheckpointError(
                f"{checkpoint.location(name)} has shape {checkpoint.shapes[name]}, but the configuration needs {shape}"
            )


def _others(names: list[str]) -> str:
    if len(names) == 1:
        return ""
    shown = ", ".join(names[1 : 1 + _NAMES_SHOWN])
    more = len(names) - 1 - _NAMES_SHOWN
    return f", as are {shown}" + (f" and {more} more" if more > 0 else "")
