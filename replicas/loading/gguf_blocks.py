"""The codes, scales and minima of those GGUF forms that the engine computes with as they are stored.

All have groups of 32 weights. Q4_0 (18 bytes): a half-precision scale, then 16 bytes of codes from -8 up, weight i in
the low nibble of byte i and weight i + 16 in the high one. Q4_1 (20 bytes): scale, minimum, codes from 0 up. Q8_0
(34 bytes): scale, 32 signed codes.

Shape suffixes: O rows, I columns, G groups of a row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gguf.constants import GGMLQuantizationType

from replicas.layers.quantized_matrix import GROUP, SIGN, Blocks

_HALF = 2
_FOUR_BITS = frozenset({GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q4_1})


def stored_bits(kind: GGMLQuantizationType) -> int:
    """The bits in which a quantized form loses nothing, or next to nothing: 4 or 8."""
    return 4 if kind in _FOUR_BITS else 8


def holds_as_stored(kind: GGMLQuantizationType, bits: int) -> bool:
    """Whether a matrix of so many bits can take the file's codes."""
    return (kind in _FOUR_BITS and bits == 4) or (kind == GGMLQuantizationType.Q8_0 and bits == 8)


def stored_blocks(stored_OB: np.ndarray[Any, np.dtype[np.uint8]], kind: GGMLQuantizationType) -> Blocks:
    """Rows of bytes, as the file has them."""
    num_scales = 2 if kind == GGMLQuantizationType.Q4_1 else 1
    code_bytes = GROUP if kind == GGMLQuantizationType.Q8_0 else GROUP // 2
    groups = stored_OB.reshape(len(stored_OB), -1, num_scales * _HALF + code_bytes)
    halves = np.ascontiguousarray(groups[:, :, : num_scales * _HALF]).view(np.float16)
    codes, scales = groups[:, :, num_scales * _HALF :], halves[:, :, 0]
    if kind == GGMLQuantizationType.Q8_0:
        return Blocks(8, np.bitwise_xor(codes, SIGN, dtype=np.uint8).reshape(len(stored_OB), -1), scales)
    nibbles = np.concatenate((codes & 0x0F, codes >> 4), axis=2).reshape(len(stored_OB), -1)
    minima = halves[:, :, 1] if kind == GGMLQuantizationType.Q4_1 else -8 * scales
    return Blocks(4, nibbles, scales, minima)
