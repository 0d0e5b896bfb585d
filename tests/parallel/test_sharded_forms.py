"""Layers whose matrices are packed or quantized, divided over ranks, compute what the whole ones do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from parallel.layers import ColumnParallelLinear, Placement, RowParallelLinear, VocabParallelEmbedding
from parallel.matrix import Matrix
from parallel.mesh import Mesh
from parallel.sharding import even_shard
from replicas.layers.packed_matrix import PackedMatrix
from replicas.layers.quantized_matrix import QuantizedMatrix
from tests.support.checkpoints import fill
from tests.support.kernels import needs_kernels

pytestmark = needs_kernels

FORMS: dict[str, Callable[..., Matrix]] = {
    "int4": lambda names, shape, dtype, device: QuantizedMatrix(shape, 4, dtype),
    "int8": lambda names, shape, dtype, device: QuantizedMatrix(shape, 8, dtype),
    "bf16": lambda names, shape, dtype, device: PackedMatrix(shape),
}
INPUTS, OUTPUTS, VOCABULARY = 192, 96, 77


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> Callable[..., Matrix]:
    return FORMS[request.param]


def placement(form: Callable[..., Matrix], ranks: int, rank: int) -> Placement:
    return Placement(Mesh(tensor=ranks, rank=rank), torch.bfloat16, torch.device("cpu"), form)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("ranks", [2, 3])
def test_column_parallel(form: Callable[..., Matrix], ranks: int) -> None:
    weights = {"gate.weight": random(OUTPUTS, INPUTS), "up.weight": random(OUTPUTS, INPUTS, seed=1)}
    x = random(5, INPUTS, seed=2).bfloat16()

    def outputs(ranks: int, rank: int) -> torch.Tensor:
        place = placement(form, ranks, rank)
        parts = {name: (OUTPUTS, even_shard(OUTPUTS, place.mesh, name)) for name in ("gate", "up")}
        layer = ColumnParallelLinear(INPUTS, parts, bias=False, placement=place)
        fill(layer.weight_slots(), weights)
        return layer(x).unflatten(1, (2, -1))

    assert torch.equal(torch.cat([outputs(ranks, rank) for rank in range(ranks)], dim=2), outputs(1, 0))


@pytest.mark.parametrize("ranks", [2, 3])
def test_row_parallel(form: Callable[..., Matrix], ranks: int) -> None:
    """The ranks' products, before they are rounded to the activations' type, sum up to the whole one."""
    weights, x = {"down.weight": random(OUTPUTS, INPUTS)}, random(5, INPUTS, seed=2).bfloat16()

    def product(ranks: int, rank: int) -> torch.Tensor:
        layer = RowParallelLinear("down", (OUTPUTS, INPUTS), bias=False, placement=placement(form, ranks, rank))
        fill(layer.weight_slots(), weights)
        return layer.weight.logits(x[:, layer.shard.start : layer.shard.stop])

    whole = product(1, 0)
    torch.testing.assert_close(sum(product(ranks, rank) for rank in range(ranks)), whole, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("ranks", [2, 3])
def test_vocabulary(form: Callable[..., Matrix], ranks: int) -> None:
    """A vocabulary that neither the ranks nor the panels divide evenly."""
    weights, x = {"head.weight": random(VOCABULARY, INPUTS)}, random(5, INPUTS, seed=2).bfloat16()

    def logits(ranks: int, rank: int) -> torch.Tensor:
        head = VocabParallelEmbedding("head", VOCABULARY, INPUTS, placement(form, ranks, rank))
        fill(head.weight_slots(), weights)
        return head.local_logits(x)

    together = torch.cat([logits(ranks, rank) for rank in range(ranks)], dim=1)
    assert torch.equal(together[:, :VOCABULARY], logits(1, 0))
    assert (together[:, VOCABULARY:] == -torch.inf).all()
