"""The compiled kernels between the matrix products compute what torch, and the obvious attention, compute."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.batch import ForwardBatch, KvLayer
from replicas.layers.attention import context_slots, write_kv
from replicas.layers.compiled_ops import CompiledOps
from replicas.layers.ops import TorchOps
from replicas.layers.reference_attention import ReferenceAttention
from tests.support.kernels import needs_kernels
from tests.support.paged import PagedSequence, forward_batch

pytestmark = needs_kernels

TORCH, COMPILED = TorchOps(), CompiledOps()
DTYPES = [torch.float32, torch.bfloat16]
BLOCK_SIZE = 16


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_near(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal up to the order of sums, and one rounding of the result."""
    tolerance = 1e-5 if expected.dtype == torch.float32 else 2**-7
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 576), (7, 64), (3, 9, 64), (300, 576)])
def test_rms_norm(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, weight = 3 * random(*shape, dtype=dtype), random(shape[-1], dtype=dtype, seed=1)
    assert_near(COMPILED.rms_norm(x, weight, 1e-5), TORCH.rms_norm(x, weight, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "size"), [(1, 1536), (5, 16), (200, 1536)])
def test_silu_mul(rows: int, size: int, dtype: torch.dtype) -> None:
    gate_up = 4 * random(rows, 2 * size, dtype=dtype)
    assert_near(COMPILED.silu_mul(gate_up), TORCH.silu_mul(gate_up))


@pytest.mark.parametrize("gate", [-1e4, -100.0, 100.0, 1e4])
def test_silu_of_extreme_gates(gate: float) -> None:
    gate_up = torch.cat((torch.full((1, 16), gate), torch.ones(1, 16)), dim=1)
    torch.testing.assert_close(COMPILED.silu_mul(gate_up), TORCH.silu_mul(gate_up), atol=1e-30, rtol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [1, 40])
def test_rotation_and_cache(tokens: int, dtype: torch.dtype) -> None:
    heads, kv_heads, head_dim = 6, 2, 64
    qkv = random(tokens, (heads + 2 * kv_heads) * head_dim, dtype=dtype)
    angles = random(tokens, 1, head_dim // 2, seed=1)
    slots = torch.randperm(96)[:tokens]
    layers = [KvLayer(*torch.zeros(2, 6, BLOCK_SIZE, kv_heads, head_dim, dtype=dtype)) for _ in range(2)]
    cos, sin = angles.cos(), angles.sin()
    expected = TORCH.rotate_and_write(qkv, (cos.to(dtype), sin.to(dtype)), slots, layers[0], heads)
    actual = COMPILED.rotate_and_write(qkv.clone(), (cos, sin), slots, layers[1], heads)
    tolerance = 1e-6 if dtype == torch.float32 else 0.05
    for ours, theirs in ((actual, expected), (layers[1].keys_NPKD, layers[0].keys_NPKD)):
        torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)
    assert torch.equal(layers[1].values_NPKD, layers[0].values_NPKD)


def paged_step(
    lengths: list[tuple[int, int]], kv_heads: int, group: int, head_dim: int, dtype: torch.dtype
) -> tuple[torch.Tensor, KvLayer, ForwardBatch]:
    """A step over sequences of (cached tokens, new tokens). What no sequence wrote is NaN; queries lie between keys
    and values, as in a packed projection."""
    generator = torch.Generator().manual_seed(0)
    blocks = [-(-(cached + new) // BLOCK_SIZE) for cached, new in lengths]
    order = iter(torch.randperm(sum(blocks) + 2, generator=generator).tolist())
    sequences = [
        PagedSequence([next(order) for _ in range(count)], 0, cached)
        for count, (cached, _) in zip(blocks, lengths, strict=True)
    ]
    tables = [torch.tensor(sequence.block_ids) for sequence in sequences]
    batch = forward_batch(sequences, [[0] * new for _, new in lengths], BLOCK_SIZE)
    shape = (sum(blocks) + 2, BLOCK_SIZE, kv_heads, head_dim)
    layer = KvLayer(torch.full(shape, torch.nan, dtype=dtype), torch.full(shape, torch.nan, dtype=dtype))
    for table, (cached, new) in zip(tables, lengths, strict=True):
        slots = context_slots(table, 0, cached + new, BLOCK_SIZE)
        key, value = torch.randn(2, len(slots), kv_heads, head_dim, generator=generator).to(dtype)
        write_kv(layer, slots, key, value)
    packed = torch.randn(batch.query_starts[-1], kv_heads * (group + 2), head_dim, generator=generator).to(dtype)
    return packed[:, : kv_heads * group], layer, batch


step_lengths = st.lists(
    st.one_of(
        st.tuples(st.integers(0, 600), st.integers(1, 3)),
        st.tuples(st.integers(0, 90), st.integers(1, 150)),
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=60, deadline=None)
@given(
    lengths=step_lengths,
    window=st.integers(0, 150),
    kv_heads=st.integers(1, 3),
    group=st.sampled_from([1, 2, 3, 4, 7, 8]),
    head_dim=st.sampled_from([64, 128]),
    dtype=st.sampled_from(DTYPES),
)
def test_attention(
    lengths: list[tuple[int, int]], window: int, kv_heads: int, group: int, head_dim: int, dtype: torch.dtype
) -> None:
    query, layer, batch = paged_step(lengths, kv_heads, group, head_dim, dtype)
    expected = ReferenceAttention(batch, layer, window)(query, layer)
    assert not expected.isnan().any(), "the reference read what nobody wrote"
    assert_near(COMPILED.plan_attention(batch, layer, window)(query, layer), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_a_sequence_attends_to_does_not_depend_on_the_batch(dtype: torch.dtype) -> None:
    lengths = [(700, 1), (40, 100), (150, 1), (300, 2)]
    query, layer, batch = paged_step(lengths, 2, 3, 64, dtype)
    together = COMPILED.plan_attention(batch, layer, 0)(query, layer)
    for index, (start, stop) in enumerate(pairwise(batch.query_starts)):
        alone = replace(
            batch,
            block_tables_SB=batch.block_tables_SB[index : index + 1],
            query_starts=[0, stop - start],
            context_lens=batch.context_lens[index : index + 1],
        )
        assert torch.equal(COMPILED.plan_attention(alone, layer, 0)(query[start:stop], layer), together[start:stop])


def test_attention_over_scores_far_apart() -> None:
    """The running maximum moves from tile to tile, by more than exp can bear."""
    query, layer, batch = paged_step([(150, 1), (100, 50)], 1, 2, 64, torch.float32)
    layer.keys_NPKD.mul_(torch.linspace(-40, 40, len(layer.keys_NPKD))[:, None, None, None])
    expected = ReferenceAttention(batch, layer, 0)(query, layer)
    torch.testing.assert_close(COMPILED.plan_attention(batch, layer, 0)(query, layer), expected, atol=1e-4, rtol=1e-4)
