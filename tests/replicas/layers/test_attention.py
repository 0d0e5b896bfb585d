"""The fast backend against the obvious one, over random batches, and the obvious one against dense attention."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from parallel.mesh import Mesh
from replicas.batch import ForwardBatch, KvLayer
from replicas.layers.attention import allocate_kv_layers, context_slots, kv_bytes_per_block, write_kv
from replicas.layers.cpu_attention import CpuAttention
from replicas.layers.reference_attention import ReferenceAttention
from replicas.loading.hf_config import read_hf_config
from tests.support.checkpoints import TINY_CONFIGS, write_config
from tests.support.paged import PagedSequence, forward_batch

BLOCK_SIZE = 4
HEAD_DIM = 8


def paged_step(lengths: list[tuple[int, int]], kv_heads: int, group: int) -> tuple[torch.Tensor, KvLayer, ForwardBatch]:
    """A step over sequences of (cached tokens, new tokens). What no sequence wrote is NaN."""
    generator = torch.Generator().manual_seed(0)
    blocks = [-(-(cached + new) // BLOCK_SIZE) for cached, new in lengths]
    order = iter(torch.randperm(sum(blocks) + 2, generator=generator).tolist())
    sequences = [
        PagedSequence([next(order) for _ in range(count)], 0, cached)
        for count, (cached, _) in zip(blocks, lengths, strict=True)
    ]
    tables = [torch.tensor(sequence.block_ids) for sequence in sequences]
    batch = forward_batch(sequences, [[0] * new for _, new in lengths], BLOCK_SIZE)
    shape = (sum(blocks) + 2, BLOCK_SIZE, kv_heads, HEAD_DIM)
    layer = KvLayer(torch.full(shape, torch.nan), torch.full(shape, torch.nan))
    for table, (cached, new) in zip(tables, lengths, strict=True):
        slots = context_slots(table, 0, cached + new, BLOCK_SIZE)
        key, value = torch.randn(2, len(slots), kv_heads, HEAD_DIM, generator=generator)
        write_kv(layer, slots, key, value)
    query = torch.randn(batch.query_starts[-1], kv_heads * group, HEAD_DIM, generator=generator)
    return query, layer, batch


step_lengths = st.lists(
    st.one_of(
        st.tuples(st.integers(0, 200), st.just(1)),
        st.tuples(st.integers(0, 40), st.integers(1, 40)),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=150, deadline=None)
@given(lengths=step_lengths, window=st.integers(0, 70), kv_heads=st.integers(1, 3), group=st.integers(1, 3))
def test_cpu_backend_equals_the_reference(
    lengths: list[tuple[int, int]], window: int, kv_heads: int, group: int
) -> None:
    query, layer, batch = paged_step(lengths, kv_heads, group)
    expected = ReferenceAttention(batch, layer, window)(query, layer)
    actual = CpuAttention(batch, layer, window)(query, layer)
    assert not expected.isnan().any(), "the reference read what nobody wrote"
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("backend", [ReferenceAttention, CpuAttention])
@pytest.mark.parametrize("window", [0, 1, 5, 12, 100])
def test_equals_dense_attention(backend: Callable[..., object], window: int) -> None:
    """One whole prompt over the keys in their plain order, with the mask written out."""
    query, layer, batch = paged_step([(0, 23)], kv_heads=2, group=2)
    slots = context_slots(batch.block_tables_SB[0], 0, 23, BLOCK_SIZE)
    key, value = (cache.flatten(0, 1)[slots].transpose(0, 1) for cache in (layer.keys_NPKD, layer.values_NPKD))
    seen = torch.tensor([[j <= i and (not window or i - j < window) for j in range(23)] for i in range(23)])
    expected = scaled_dot_product_attention(query.transpose(0, 1), key, value, attn_mask=seen, enable_gqa=True)
    actual = backend(batch, layer, window)(query, layer)  # type: ignore[operator]
    torch.testing.assert_close(actual, expected.transpose(0, 1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("backend", [ReferenceAttention, CpuAttention])
def test_blocks_outside_the_window_may_be_freed(backend: Callable[..., object]) -> None:
    """Overwriting what the window has passed changes nothing: neither in decode, nor in a chunk."""
    window = 6
    query, layer, batch = paged_step([(30, 1), (30, 5)], kv_heads=2, group=2)
    expected = backend(batch, layer, window)(query, layer)  # type: ignore[operator]
    for index, first_query in enumerate((30, 30)):
        passed = context_slots(batch.block_tables_SB[index], 0, first_query - window + 1, BLOCK_SIZE)
        layer.keys_NPKD.flatten(0, 1)[passed] = 1e9
        layer.values_NPKD.flatten(0, 1)[passed] = 1e9
    assert torch.equal(backend(batch, layer, window)(query, layer), expected)  # type: ignore[operator]


def test_cache_size_is_what_is_allocated(tmp_path: Path) -> None:
    write_config(tmp_path, TINY_CONFIGS["qwen3"])
    config = read_hf_config(tmp_path)
    layers = allocate_kv_layers(config, Mesh(), 5, 16, torch.bfloat16, torch.device("cpu"))
    assert len(layers) == config.num_layers
    assert layers[0].keys_NPKD.shape == (5, 16, config.num_kv_heads, config.head_dim)
    allocated = sum(cache.nbytes for layer in layers for cache in (layer.keys_NPKD, layer.values_NPKD))
    assert allocated == 5 * kv_bytes_per_block(config, Mesh(), 16, torch.bfloat16)
