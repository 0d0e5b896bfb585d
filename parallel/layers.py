"""Linear layers and embeddings that are divided over the tensor-parallel ranks.

Models are written against these layers and never ask how many ranks there are: at size 1 a layer is the plain one.
The division is Megatron's (Shoeybi et al., 2019): a column-parallel layer splits its outputs and needs no
communication, the row-parallel one after it splits its inputs and sums the ranks' results.

Shape suffixes: T tokens, I input features, O output features on this rank, V vocabulary rows on this rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from parallel.collectives import all_gather_last_dim, all_reduce
from parallel.matrix import GatedMatrix, Matrix, MatrixFactory, PlainMatrix
from parallel.mesh import Mesh
from parallel.sharding import Shard, WeightSlot, even_shard, padded_shard


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a model's parameters live, and as what. Only matrices are anything else than plain tensors."""

    mesh: Mesh
    dtype: torch.dtype
    device: torch.device
    matrices: MatrixFactory = PlainMatrix

    def parameter(self, *shape: int) -> nn.Parameter:
        """Uninitialised memory that the loader fills."""
        return nn.Parameter(torch.empty(shape, dtype=self.dtype, device=self.device), requires_grad=False)

    def matrix(self, names: Sequence[str], outputs: int, inputs: int) -> Matrix:
        return self.matrices(names, (outputs, inputs), self.dtype, self.device)


class Layer(nn.Module):
    """A module that computes one tensor; `nn.Module` alone would leave the type open."""

    __call__: Callable[..., torch.Tensor]


class ColumnParallelLinear(Layer):
    """y = x W^T + b with the rows of W divided. Several projections of one input are packed into one matrix;
    `parts` names them in order, each with its full number of rows and the shard of them held here."""

    def __init__(
        self, in_features: int, parts: Mapping[str, tuple[int, Shard]], bias: bool, placement: Placement
    ) -> None:
        super().__init__()
        self.parts = dict(parts)
        self.sizes = [shard.stop - shard.start for _, shard in self.parts.values()]
        self.weight = placement.matrix(list(self.parts), sum(self.sizes), in_features)
        self.bias = placement.parameter(sum(self.sizes)) if bias else None
        self.gated_weight = self.weight if not bias and isinstance(self.weight, GatedMatrix) else None

    def forward(self, x_TI: torch.Tensor) -> torch.Tensor:
        return self.weight(x_TI, self.bias)

    def gated(self, x_TI: torch.Tensor, silu_mul: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """`silu_mul` of the two parts' products, in one step where the matrix can."""
        return silu_mul(self(x_TI)) if self.gated_weight is None else self.gated_weight.gated(x_TI)

    def weight_slots(self) -> Iterator[tuple[str, WeightSlot]]:
        in_features, first = self.weight.shape[1], 0
        for (name, (rows, shard)), size in zip(self.parts.items(), self.sizes, strict=True):
            yield f"{name}.weight", WeightSlot(self.weight.part(first, size), (rows, in_features), shard)
            first += size
        if self.bias is None:
            return
        for (name, (rows, shard)), bias_O in zip(self.parts.items(), self.bias.data.split(self.sizes), strict=True):
            yield f"{name}.bias", WeightSlot(bias_O, (rows,), shard)


class RowParallelLinear(Layer):
    """y = sum over ranks of x W^T, plus b and a residual, with the columns of W divided; each rank brings its slice
    of x. `shape` is the full matrix's: outputs, inputs."""

    def __init__(self, name: str, shape: tuple[int, int], bias: bool, placement: Placement) -> None:
        super().__init__()
        out_features, in_features = shape
        mesh = placement.mesh
        self.name = name
        self.mesh = mesh
        self.shape = shape
        self.shard = even_shard(in_features, mesh, f"the input of {name}", dim=1)
        self.weight = placement.matrix([name], out_features, in_features // mesh.tensor)
        self.bias = placement.parameter(out_features) if bias else None

    def forward(self, x_TI: torch.Tensor, residual_TO: torch.Tensor | None = None) -> torch.Tensor:
        if self.mesh.tensor == 1:
            return self.weight(x_TI, self.bias, residual_TO)
        y_TO = all_reduce(self.weight(x_TI), self.mesh)
        if self.bias is not None:
            y_TO = y_TO + self.bias
        return y_TO if residual_TO is None else residual_TO + y_TO

    def weight_slots(self) -> Iterator[tuple[str, WeightSlot]]:
        yield f"{self.name}.weight", WeightSlot(self.weight.part(0, self.shape[0]), self.shape, self.shard)
        if self.bias is not None:
            yield f"{self.name}.bias", WeightSlot(self.bias.data, self.shape[:1])


class VocabParallelEmbedding(Layer):
    """Token embeddings with the vocabulary divided. The same matrix serves as the head of a tied model, and a
    separate head is this layer under another name. A vocabulary that the ranks can't divide is padded with zeros."""

    def __init__(self, name: str, vocab_size: int, hidden_size: int, placement: Placement) -> None:
        super().__init__()
        mesh = placement.mesh
        self.name = name
        self.mesh = mesh
        self.vocab_size = vocab_size
        self.shard = padded_shard(vocab_size, mesh)
        self.weight = placement.matrix([name], -(-vocab_size // mesh.tensor), hidden_size)

    def forward(self, token_ids_T: torch.Tensor) -> torch.Tensor:
        if self.mesh.tensor == 1:
            return self.weight.lookup(token_ids_T)
        elsewhere_T = (token_ids_T < self.shard.start) | (token_ids_T >= self.shard.stop)
        rows_T = (token_ids_T - self.shard.start).masked_fill(elsewhere_T, 0)
        return all_reduce(self.weight.lookup(rows_T).masked_fill(elsewhere_T[:, None], 0), self.mesh)

    def local_logits(self, hidden_TI: torch.Tensor) -> torch.Tensor:
        """The logits of this rank's part of the vocabulary; what pads it is minus infinity."""
        logits_TV = self.weight.logits(hidden_TI)
        logits_TV[:, self.shard.stop - self.shard.start :] = -torch.inf
        return logits_TV

    def whole_logits(self, logits_TV: torch.Tensor) -> torch.Tensor:
        """Every rank's local logits side by side: float32, over the whole vocabulary, on every rank."""
        return all_gather_last_dim(logits_TV, self.mesh)[:, : self.vocab_size].float()

    def logits(self, hidden_TI: torch.Tensor) -> torch.Tensor:
        return self.whole_logits(self.local_logits(hidden_TI))

    def weight_slots(self) -> Iterator[tuple[str, WeightSlot]]:
        held = self.shard.stop - self.shard.start
        shape = (self.vocab_size, self.weight.shape[1])
        yield f"{self.name}.weight", WeightSlot(self.weight.part(0, held), shape, self.shard)
