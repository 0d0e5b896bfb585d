"""The compiled kernels as functions of tensors. Tensors are contiguous unless a function says otherwise.

Shape suffixes: T tokens, I inputs, O outputs, H hidden, C columns of packed queries, keys and values, Q query heads,
D head dimension, F half a head dimension, S sequences, B blocks of the longest sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from struct import pack, unpack

import torch

from replicas.batch import ForwardBatch, KvLayer
from replicas.kernels.cpu.calls import keep, launch


def rms_norm(x: torch.Tensor, weight_H: torch.Tensor, eps: float) -> torch.Tensor:
    """x / rms(x) * weight over the last dimension."""
    out, size = _new(x.shape, x.dtype), x.size(-1)
    rows = x.numel() // size
    launch("rms_norm", x.data_ptr(), weight_H.data_ptr(), out.data_ptr(), rows, size, _bits_of(eps), _is_bf16(x))
    return out


def silu_mul(gate_up_TI: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up, which lie side by side."""
    rows, size = gate_up_TI.size(0), gate_up_TI.size(1) // 2
    out = _new((rows, size), gate_up_TI.dtype)
    launch("silu_mul", gate_up_TI.data_ptr(), out.data_ptr(), rows, size, _is_bf16(out))
    return out


def rotate_and_write(
    qkv_TC: torch.Tensor,
    cos_sin: tuple[torch.Tensor, torch.Tensor],
    slots_T: torch.Tensor,
    layer: KvLayer,
    num_heads: int,
) -> None:
    """Rotate queries and keys in place by float32 (cos_T1F, sin_T1F); write keys and values to the cache."""
    cos, sin = cos_sin
    keys = layer.keys_NPKD
    launch(
        "rotate_and_write",
        qkv_TC.data_ptr(),
        cos.data_ptr(),
        sin.data_ptr(),
        slots_T.data_ptr(),
        keys.data_ptr(),
        layer.values_NPKD.data_ptr(),
        qkv_TC.size(0),
        num_heads,
        keys.size(2),
        keys.size(3),
        _is_bf16(qkv_TC),
    )


@dataclass(frozen=True, slots=True)
class AttentionStep:
    """What a step's attention needs beside queries and cache, in the kernel's types."""

    block_tables_SB: torch.Tensor
    query_starts_S: torch.Tensor
    context_lens_S: torch.Tensor
    window: int

    @classmethod
    def of(cls, batch: ForwardBatch, window: int) -> AttentionStep:
        starts = torch.tensor(batch.query_starts, dtype=torch.int32)
        context_lens = torch.tensor(batch.context_lens, dtype=torch.int32)
        return cls(batch.block_tables_SB.contiguous(), starts, context_lens, window)


def attention(step: AttentionStep, query_TQD: torch.Tensor, layer: KvLayer) -> torch.Tensor:
    """output_TQD. Each token's query heads are contiguous; tokens may lie further apart."""
    keys = layer.keys_NPKD
    num_heads, head_dim = query_TQD.shape[1:]
    out = _new(query_TQD.shape, query_TQD.dtype)
    launch(
        "attention",
        query_TQD.data_ptr(),
        keys.data_ptr(),
        layer.values_NPKD.data_ptr(),
        step.block_tables_SB.data_ptr(),
        step.query_starts_S.data_ptr(),
        step.context_lens_S.data_ptr(),
        out.data_ptr(),
        step.context_lens_S.size(0),
        step.block_tables_SB.size(1),
        keys.size(1),
        query_TQD.stride(0),
        keys.size(2),
        num_heads // keys.size(2),
        head_dim,
        step.window,
        _is_bf16(out),
    )
    return out


def draw(logits_RV: torch.Tensor, keys_R: torch.Tensor) -> torch.Tensor:
    """tokens_R drawn from the softmax of float32 logits with the noise of `keys_R`; -1 where it can't tell."""
    tokens_R = torch.empty_like(keys_R)
    launch("draw", logits_RV.data_ptr(), keys_R.data_ptr(), tokens_R.data_ptr(), *logits_RV.shape)
    return tokens_R


def matmul_quantized(
    x_TI: torch.Tensor,
    panels: torch.Tensor,
    bits: int,
    outputs: int,
    bias_O: torch.Tensor | None = None,
    residual_TO: torch.Tensor | None = None,
    float_output: bool = False,
    gated: bool = False,
) -> torch.Tensor:
    """x W^T (+ bias) (+ residual, which is overwritten with the result) over panels of 4 or 8 bits. If `gated`, silu of
    the first half of the rows' products times the second half, and `outputs` counts one half."""
    form = bits, _is_bf16(x_TI), gated
    return _matmul("matmul_quantized", x_TI, panels, outputs, bias_O, residual_TO, float_output, *form)


def matmul_bf16(
    x_TI: torch.Tensor,
    panels: torch.Tensor,
    outputs: int,
    bias_O: torch.Tensor | None = None,
    residual_TO: torch.Tensor | None = None,
    float_output: bool = False,
) -> torch.Tensor:
    """x W^T (+ bias) (+ residual, which is overwritten with the result) over panels of bfloat16."""
    return _matmul("matmul_bf16", x_TI, panels, outputs, bias_O, residual_TO, float_output)


def _matmul(
    kernel: str,
    x_TI: torch.Tensor,
    panels: torch.Tensor,
    outputs: int,
    bias_O: torch.Tensor | None,
    residual_TO: torch.Tensor | None,
    float_output: bool,
    *form: int,
) -> torch.Tensor:
    """`form` is what the kernel must know besides of weights and activations."""
    out_TO = _output(x_TI, outputs, residual_TO, float_output)
    launch(
        kernel,
        x_TI.data_ptr(),
        panels.data_ptr(),
        0 if bias_O is None else bias_O.data_ptr(),
        0 if residual_TO is None else residual_TO.data_ptr(),
        out_TO.data_ptr(),
        x_TI.size(0),
        outputs,
        x_TI.size(1),
        *form,
        float_output,
    )
    return out_TO


def _output(x_TI: torch.Tensor, outputs: int, residual_TO: torch.Tensor | None, float_output: bool) -> torch.Tensor:
    if residual_TO is not None:
        return residual_TO
    return _new((x_TI.size(0), outputs), torch.float32 if float_output else x_TI.dtype)


def _new(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    out = torch.empty(shape, dtype=dtype)
    keep(out)
    return out


@cache
def _bits_of(number: float) -> int:
    bits: int = unpack("q", pack("d", number))[0]
    return bits


def _is_bf16(x: torch.Tensor) -> bool:
    return x.dtype == torch.bfloat16
