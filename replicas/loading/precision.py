"""In which precision an engine computes: what its configuration asks for, its files hold, and this machine can do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from parallel.matrix import Matrix, PlainMatrix
from parallel.mesh import Mesh
from replicas.config import EngineConfig, ModelConfig, Quantization
from replicas.kernels.cpu.library import KernelsUnavailableError, load_library
from replicas.layers.compiled_ops import CompiledOps, kernels_fit
from replicas.layers.compute import Compute
from replicas.layers.ops import TorchOps
from replicas.layers.packed_matrix import LANES, PackedMatrix
from replicas.layers.quantized_matrix import GROUP, QuantizedMatrix
from replicas.loading.checkpoint import Checkpoint, dtype_name, resolve_dtype

_VOCABULARY = ("model.embed_tokens", "lm_head")


@dataclass(frozen=True, slots=True)
class Precision:
    """`stored` are the checkpoint's matrices whose form is kept, where that is the quantization, with their bits."""

    dtype: torch.dtype
    compiled: bool
    quantization: Quantization
    stored: dict[str, int]
    record_decodes: bool = True

    @property
    def name(self) -> str:
        """What tells apart caches whose contents differ."""
        parts = [str(dtype_name(self.dtype)), *([self.quantization] if self.quantization != "none" else [])]
        return "-".join(parts)

    def compute(self, config: ModelConfig, mesh: Mesh) -> Compute:
        """How a rank of this mesh computes the model."""
        if not self.compiled:
            return Compute(TorchOps(), PlainMatrix)
        if not kernels_fit(config, mesh, self.dtype):
            return Compute(TorchOps(), self.matrix)
        return Compute(CompiledOps(), self.matrix, self.record_decodes and self._is_all_kernels(config, mesh))

    def _is_all_kernels(self, config: ModelConfig, mesh: Mesh) -> bool:
        """Whether nothing within a decoder layer is computed by torch, or waits for another rank."""
        quantized = self.quantization != "none" and config.intermediate_size % GROUP == config.hidden_size % GROUP == 0
        return mesh.tensor == 1 and not config.qk_norm and (quantized or self.dtype == torch.bfloat16)

    def matrix(self, names: Sequence[str], shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> Matrix:
        """A `MatrixFactory`. Matrices whose rows no kernel takes stay plain."""
        bits = self._bits(names)
        if bits is not None and shape[1] % GROUP == 0:
            return QuantizedMatrix(shape, bits, dtype)
        if dtype == torch.bfloat16 and shape[1] % LANES == 0:
            return PackedMatrix(shape)
        return PlainMatrix(names, shape, dtype, device)

    def _bits(self, names: Sequence[str]) -> int | None:
        """A matrix of several parts takes the finest of their forms. The vocabulary has 8 bits at least."""
        if self.stored:
            known = [self.stored.get(name) for name in names]
            return None if None in known else max(bits for bits in known if bits is not None)
        if self.quantization == "none":
            return None
        return 4 if self.quantization == "int4" and not set(names) & set(_VOCABULARY) else 8


def resolve_precision(config: EngineConfig, checkpoint: Checkpoint) -> Precision:
    """Raises ValueError for what cannot be done here."""
    device = torch.device(config.device)
    compiled = _compiled(config, device)
    dtype = resolve_dtype(config.dtype, checkpoint.config, device, fast_bfloat16=compiled)
    if config.quantization in ("int4", "int8"):
        if not compiled:
            raise ValueError(
                f"quantization {config.quantization} needs the compiled CPU kernels, but kernels is {config.kernels!r} "
                f"on {config.device}"
            )
        if dtype == torch.float16:
            raise ValueError(f"quantization {config.quantization} needs dtype bfloat16 or float32, not float16")
        return Precision(dtype, compiled, config.quantization, {}, config.record_decodes)
    stored: dict[str, int] = {}
    if compiled and config.quantization == "auto" and config.dtype == "auto":
        stored = _stored_bits(checkpoint)
    kept: Quantization = "none" if not stored else "int4" if 4 in stored.values() else "int8"
    return Precision(dtype, compiled, kept, stored, config.record_decodes)


def resolved(config: EngineConfig, precision: Precision) -> EngineConfig:
    """The configuration with what `auto` has become."""
    return replace(config, dtype=dtype_name(precision.dtype), quantization=precision.quantization)


def _compiled(config: EngineConfig, device: torch.device) -> bool:
    if config.kernels == "torch" or (config.kernels == "auto" and device.type != "cpu"):
        return False
    if device.type != "cpu":
        raise ValueError(f"kernels 'compiled' are for CPUs, but the device is {config.device}")
    wanted = config.kernels == "compiled" or config.quantization in ("int4", "int8")
    try:
        load_library()
    except KernelsUnavailableError:
        if wanted:
            raise
        return False
    return True


def _stored_bits(checkpoint: Checkpoint) -> dict[str, int]:
    """The bits of the file's quantized matrices, by name without `.weight`."""
    bits = {name: checkpoint.bits(name) for name, shape in checkpoint.shapes.items() if len(shape) == 2}
    return {name.removesuffix(".weight"): count for name, count in bits.items() if count is not None}
