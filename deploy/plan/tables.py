"""How long kernels and messages take, from the tables of one folder.

The measurements are other people's, of other engines' kernels: see `data/README.md`. Two things are carried over where
none exist. Kernels of an H100 are those of an H200 (the same chip with faster memory) at the same share of what its
memory or its arithmetic allows. Sends between stages are those measured on H100s, whose links are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from deploy.errors import UserError
from deploy.plan.devices import GPUS, Gpu
from deploy.plan.grid import Tree, read_grid, time_at

OUR_TABLES = Path(__file__).parent / "data"
SENDS = "h100"
ITEMSIZE = 2  # the tables hold kernels of 16-bit numbers

# AIConfigurator's h200_sxm.yaml: what a simple kernel reaches of the memory's bandwidth, and what it costs at least.
_STREAMING_SHARE = 0.8
_LAUNCH_SECONDS = 3e-6


@dataclass(frozen=True, slots=True)
class Work:
    """What a kernel computes and moves: the least time it could take follows from it."""

    flops: float
    bytes: float

    def seconds(self, gpu: Gpu) -> float:
        return max(self.flops / gpu.flops, self.bytes / gpu.bandwidth)


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """Seconds on `gpu`. No kernel is said to be faster than memory and arithmetic allow."""

    gpu: Gpu
    gemms: Tree
    decodes: Tree
    prefills: Tree
    all_reduces: Tree
    all_gathers: Tree
    sends: Tree

    def gemm(self, tokens: int, in_features: int, out_features: int) -> float:
        weights = in_features * out_features
        activations = tokens * (in_features + out_features)
        work = Work(2.0 * tokens * weights, ITEMSIZE * (weights + activations))
        return self._on_gpu(time_at(self.gemms, (in_features, out_features, tokens)), work)

    def decode_attention(self, heads: tuple[int, int, int], batch: int, context: int) -> float:
        """`heads`: query heads, KV heads and head dimension of the rank."""
        query_heads, kv_heads, head_dim = heads
        work = Work(
            4.0 * batch * context * query_heads * head_dim, 2.0 * ITEMSIZE * batch * context * kv_heads * head_dim
        )
        point = (head_dim, kv_heads, query_heads / kv_heads, batch, context)
        return self._on_gpu(time_at(self.decodes, point), work)

    def prefill_attention(self, heads: tuple[int, int, int], prompt: int) -> float:
        query_heads, kv_heads, head_dim = heads
        work = Work(2.0 * prompt * prompt * query_heads * head_dim, 2.0 * ITEMSIZE * prompt * kv_heads * head_dim)
        point = (head_dim, kv_heads, query_heads / kv_heads, prompt)
        return self._on_gpu(time_at(self.prefills, point, powers={3: 2.0}), work)

    def streaming(self, moved: int) -> float:
        """A kernel that only reads and writes that many bytes: a norm, an activation, a rotation."""
        return moved / (self.gpu.bandwidth * _STREAMING_SHARE) + _LAUNCH_SECONDS

    def all_reduce(self, ranks: int, payload: int) -> float:
        return time_at(self.all_reduces, (ranks, payload))

    def all_gather(self, ranks: int, payload: int) -> float:
        return time_at(self.all_gathers, (ranks, ranks * payload))

    def send(self, payload: int, within_node: bool) -> float:
        return time_at(self.sends, (2 if within_node else 1, payload))

    def _on_gpu(self, measured: float, work: Work) -> float:
        share = work.seconds(self.gpu) / work.seconds(GPUS[self.gpu.kernels])
        return max(measured * share, work.seconds(self.gpu))


def read_tables(folder: Path, gpu: Gpu) -> KernelTimes:
    """Raises FileNotFoundError where the folder lacks a table, UserError where it isn't there or holds nonsense."""
    if not folder.is_dir():
        raise UserError(f"--tables: there is no folder {folder}")
    gather = folder / f"{gpu.links}_all_gather.csv"
    return KernelTimes(
        gpu,
        gemms=_read(folder / f"{gpu.kernels}_gemm.csv"),
        decodes=_read(folder / f"{gpu.kernels}_decode_attention.csv"),
        prefills=_read(folder / f"{gpu.kernels}_prefill_attention.csv"),
        all_reduces=_read(folder / f"{gpu.links}_all_reduce.csv"),
        # An all-reduce moves what an all-gather of the same result does, twice.
        all_gathers=_read(gather if gather.exists() else folder / f"{gpu.links}_all_reduce.csv"),
        sends=_read(folder / f"{SENDS}_send_recv.csv"),
    )


def _read(file: Path) -> Tree:
    try:
        return read_grid(file)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise UserError(f"--tables: {file} can't be read as a table: {error}") from error
