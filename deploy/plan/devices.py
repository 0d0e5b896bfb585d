"""The GPUs that can be planned for."""

from __future__ import annotations

from dataclasses import dataclass

from deploy.errors import UserError


@dataclass(frozen=True, slots=True)
class Gpu:
    """`memory` is what CUDA lets programs see, in bytes; `bandwidth` bytes a second from memory; `flops` dense
    16-bit operations a second. `kernels` and `links` name the tables that stand for its kernels and its links."""

    name: str
    title: str
    memory: int
    bandwidth: float
    flops: float
    kernels: str
    links: str


GPUS = {
    "h200": Gpu("h200", "H200 SXM", 139 << 30, 4.8e12, 989e12, kernels="h200", links="h200"),
    "h100": Gpu("h100", "H100 SXM 80 GB", 79 << 30, 3.35e12, 989e12, kernels="h200", links="h100"),
}
GPUS_PER_NODE = 8

# From AIConfigurator's h200_sxm.yaml: contexts, libraries and fragments, and the buffers of NCCL.
RESERVED = 3584 << 20
RESERVED_FOR_NCCL = 392 << 20


def reserved_bytes(ranks: int) -> int:
    """What a rank may not fill with weights, activations and KV cache."""
    return RESERVED + (RESERVED_FOR_NCCL if ranks > 1 else 0)


def gpu_named(name: str) -> Gpu:
    if name.lower() not in GPUS:
        raise UserError(f"{name!r} is no GPU that can be planned for; known ones are {', '.join(GPUS)}")
    return GPUS[name.lower()]
