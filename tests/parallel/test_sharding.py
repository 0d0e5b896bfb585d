from __future__ import annotations

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from parallel.mesh import Mesh
from parallel.sharding import even_shard, kv_head_shard, padded_shard


def meshes(tensor: int, group: dist.ProcessGroup) -> list[Mesh]:
    return [Mesh(tensor=tensor, rank=rank, tensor_group=group) for rank in range(tensor)]


@pytest.fixture(scope="module")
def group() -> dist.ProcessGroup:
    return dist.ProcessGroup(0, 1)


def test_ranks_are_numbered_stage_by_stage(group: dist.ProcessGroup) -> None:
    coordinates = [
        (mesh.pipeline_rank, mesh.tensor_rank)
        for mesh in (Mesh(tensor=2, pipeline=3, rank=rank, tensor_group=group) for rank in range(6))
    ]
    assert coordinates == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]


@given(size=st.integers(1, 64), tensor=st.integers(1, 8))
def test_padded_shards_cover_every_index_once(group: dist.ProcessGroup, size: int, tensor: int) -> None:
    shards = [padded_shard(size, mesh) for mesh in meshes(tensor, group)]
    assert [index for shard in shards for index in range(shard.start, shard.stop)] == list(range(size))
    assert max(shard.stop - shard.start for shard in shards) <= -(-size // tensor)


def test_even_shards_refuse_a_remainder_and_name_the_dimension(group: dist.ProcessGroup) -> None:
    assert [(s.start, s.stop) for s in (even_shard(6, mesh, "x") for mesh in meshes(2, group))] == [(0, 3), (3, 6)]
    with pytest.raises(ValueError, match=r"num_attention_heads is 9, .* 2 ranks"):
        even_shard(9, meshes(2, group)[0], "num_attention_heads")


def test_ranks_beyond_the_kv_heads_hold_copies(group: dist.ProcessGroup) -> None:
    assert [kv_head_shard(2, mesh).start for mesh in meshes(4, group)] == [0, 0, 1, 1]
    assert [kv_head_shard(4, mesh).start for mesh in meshes(2, group)] == [0, 2]
    with pytest.raises(ValueError, match="num_key_value_heads is 3"):
        kv_head_shard(3, meshes(4, group)[0])
