"""What a model is (`ModelConfig`, read from its files) and how an engine runs it (`EngineConfig`, chosen by people)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DTYPES = ("auto", "float32", "bfloat16", "float16")
QUANTIZATIONS = ("auto", "int8", "int4", "none")
KERNELS = ("auto", "compiled", "torch")
_AT_LEAST_ONE = (
    "block_size",
    "max_batched_tokens",
    "max_running",
    "kv_cache_memory",
    "tensor_parallel",
    "pipeline_parallel",
)
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Quantization = Literal["auto", "int8", "int4", "none"]
Kernels = Literal["auto", "compiled", "torch"]


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the trained length. `kind` is one of
    linear, dynamic, llama3, yarn; fields that a kind does not use keep their defaults."""

    kind: Literal["linear", "dynamic", "llama3", "yarn"]
    factor: float
    original_max_positions: int
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shapes and constants of a decoder. Lengths in tokens, sizes in elements.

    `sliding_windows` has one entry a layer: the number of tokens a query sees including itself, 0 for all.
    `rope_freq_factors`, where a GGUF file has them, divide the rotary frequencies one by one."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    sliding_windows: tuple[int, ...]
    dtype: Dtype
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    rope_freq_factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How one engine runs. Sizes in bytes or tokens; `max_model_len` 0 takes the model's own limit.
    `itl_objective` (seconds) bounds how long a step with running decodes may take; None: unbounded.
    `quantization` is of the weights; `auto` keeps the form that the file has, unless a dtype is asked for.
    `kernels` on CPUs: our own compiled ones, or torch's. `record_decodes`: steps of a few decodes make the kernel
    calls of an earlier one again.
    `threads` 0 computes with every core that the process may use.
    `kv_cache_memory` is that of each of the tensor_parallel * pipeline_parallel ranks."""

    dtype: Dtype = "auto"
    quantization: Quantization = "auto"
    kernels: Kernels = "auto"
    record_decodes: bool = True
    block_size: int = 16
    max_batched_tokens: int = 2048
    max_running: int = 128
    max_model_len: int = 0
    kv_cache_memory: int = 2 * 1024**3
    prefix_caching: bool = True
    itl_objective: float | None = None
    policy: Literal["fcfs", "priority", "deadline", "shortest"] = "shortest"
    device: str = "cpu"
    threads: int = 0
    tensor_parallel: int = 1
    pipeline_parallel: int = 1

    @property
    def num_ranks(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel

    def __post_init__(self) -> None:
        for name, allowed in (("dtype", DTYPES), ("quantization", QUANTIZATIONS), ("kernels", KERNELS)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} is {getattr(self, name)!r}, but must be one of {', '.join(allowed)}")
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be at least 1")
        if self.max_running > self.max_batched_tokens:
            raise ValueError(
                f"max_running is {self.max_running}, but may not exceed max_batched_tokens "
                f"({self.max_batched_tokens}): every running request needs room for one token in a step"
            )
