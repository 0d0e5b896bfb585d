"""Two real ranks over Gloo against the dense computation."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn import functional as F

from parallel.layers import ColumnParallelLinear, Placement, RowParallelLinear, VocabParallelEmbedding
from parallel.mesh import Mesh
from parallel.sharding import even_shard
from replicas.loading.checkpoint import load_model, open_checkpoint
from tests.support.checkpoints import TINY_CONFIGS, VOCAB_SIZE, fill, write_tiny
from tests.support.paged import chunked_logits

CPU = torch.device("cpu")
RANKS = 2


def _placement(mesh: Mesh) -> Placement:
    return Placement(mesh, torch.float32, CPU)


def _mlp(mesh: Mesh, weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    parts = {name: (8, even_shard(8, mesh, "features")) for name in ("gate", "up")}
    up = ColumnParallelLinear(4, parts, bias=True, placement=_placement(mesh))
    down = RowParallelLinear("down", (4, 8), bias=True, placement=_placement(mesh))
    fill(up.weight_slots(), weights)
    fill(down.weight_slots(), weights)
    gate, up_x = up(x).chunk(2, dim=-1)
    return down(F.silu(gate) * up_x)


def _embedding(mesh: Mesh, weights: dict[str, torch.Tensor]) -> VocabParallelEmbedding:
    embedding = VocabParallelEmbedding("table", 7, 4, _placement(mesh))
    fill(embedding.weight_slots(), weights)
    return embedding


def _weights() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "gate.weight": (8, 4),
        "gate.bias": (8,),
        "up.weight": (8, 4),
        "up.bias": (8,),
        "down.weight": (4, 8),
        "down.bias": (4,),
        "table.weight": (7, 4),
    }
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def _dense_mlp(w: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    gate, up = (F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"]) for name in ("gate", "up"))
    return F.linear(F.silu(gate) * up, w["down.weight"], w["down.bias"])


def _check_layers(mesh: Mesh) -> None:
    weights = _weights()
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(_mlp(mesh, weights, x), _dense_mlp(weights, x))
    token_ids = torch.tensor([0, 3, 4, 6, 6, 1])
    embedding = _embedding(mesh, weights)
    torch.testing.assert_close(embedding(token_ids), weights["table.weight"][token_ids])
    torch.testing.assert_close(embedding.logits(x), x @ weights["table.weight"].T)


def _check_models(mesh: Mesh, folder: Path) -> None:
    """Each rank reads its slices of the checkpoint; the logits are those of one rank."""
    token_ids = [3 + index * 7 % (VOCAB_SIZE - 3) for index in range(11)]
    for name in ("llama-gqa", "llama-tied", "qwen3-biased-tied"):
        checkpoint = open_checkpoint(folder / name)
        whole = load_model(checkpoint, Mesh(), torch.float32, CPU)
        divided = load_model(checkpoint, mesh, torch.float32, CPU)
        expected = chunked_logits(whole, token_ids, chunk=4)
        torch.testing.assert_close(chunked_logits(divided, token_ids, chunk=4, mesh=mesh), expected, atol=1e-4, rtol=0)


def _check_rank(rank: int, store: str, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    mesh = Mesh(tensor=RANKS, rank=rank, tensor_group=dist.group.WORLD)
    _check_layers(mesh)
    _check_models(mesh, folder)
    dist.destroy_process_group()


def test_one_rank_is_the_plain_layer() -> None:
    _check_layers(Mesh())


def test_two_ranks_compute_what_one_does(tmp_path: Path) -> None:
    for name in ("llama-gqa", "llama-tied", "qwen3-biased-tied"):
        write_tiny(tmp_path / name, TINY_CONFIGS[name])
    mp.spawn(_check_rank, args=(str(tmp_path / "store"), tmp_path), nprocs=RANKS)


def test_packed_projections_keep_their_own_names_and_shapes() -> None:
    parts = {name: (8, even_shard(8, Mesh(), "features")) for name in ("gate", "up")}
    column = ColumnParallelLinear(4, parts, bias=False, placement=_placement(Mesh()))
    assert {name: slot.shape for name, slot in column.weight_slots()} == {"gate.weight": (8, 4), "up.weight": (8, 4)}
    assert column.weight.shape == (16, 4)
