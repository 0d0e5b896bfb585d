"""BERT (Devlin et al., 2018) as an encoder of texts: post-normalised blocks in which every token sees all of its
sequence.

Sequences are computed without padding: everything but attention looks at single tokens, and attention takes sequences
of equal length together. So what a sequence comes to does not depend on what is computed beside it.

Shape suffixes: T tokens of all sequences, H hidden, C queries, keys and values of all heads, N heads, D head
dimension, S sequences of one length, L that length, F intermediate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import nn

Weights = Iterator[tuple[str, torch.Tensor]]
Runs = Sequence[tuple[int, int]]
"""How many sequences of which length follow each other."""


@dataclass(frozen=True, slots=True)
class BertConfig:
    """Shapes and constants, under the names that the field has for them."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    max_positions: int
    num_types: int
    layer_norm_eps: float


class Embeddings(nn.Module):
    """A token's word, position and type added up. All tokens are of the first type: there is one text only."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.words = nn.Embedding(config.vocab_size, config.hidden_size)
        self.positions = nn.Embedding(config.max_positions, config.hidden_size)
        self.types = nn.Embedding(config.num_types, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)

    def forward(self, token_ids_T: torch.Tensor, positions_T: torch.Tensor) -> torch.Tensor:
        hidden_TH = self.words(token_ids_T) + self.types.weight[0] + self.positions(positions_T)
        normed_TH: torch.Tensor = self.norm(hidden_TH)
        return normed_TH

    def weights(self) -> Weights:
        yield "embeddings.word_embeddings.weight", self.words.weight
        yield "embeddings.position_embeddings.weight", self.positions.weight
        yield "embeddings.token_type_embeddings.weight", self.types.weight
        yield from _named("embeddings.LayerNorm", self.norm)


class EncoderLayer(nn.Module):
    def __init__(self, prefix: str, config: BertConfig) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.layer_norm_eps
        self.prefix = prefix
        self.num_heads = config.num_heads
        self.qkv = nn.Linear(size, 3 * size)
        self.attention_out = nn.Linear(size, size)
        self.attention_norm = nn.LayerNorm(size, eps)
        self.mlp_in = nn.Linear(size, config.intermediate_size)
        self.mlp_out = nn.Linear(config.intermediate_size, size)
        self.mlp_norm = nn.LayerNorm(size, eps)

    def forward(self, hidden_TH: torch.Tensor, runs: Runs) -> torch.Tensor:
        attended_TH = attend(self.qkv(hidden_TH), self.num_heads, runs)
        hidden_TH = self.attention_norm(hidden_TH + self.attention_out(attended_TH))
        inner_TF = F.gelu(self.mlp_in(hidden_TH))
        normed_TH: torch.Tensor = self.mlp_norm(hidden_TH + self.mlp_out(inner_TF))
        return normed_TH

    def weights(self) -> Weights:
        names = (f"{self.prefix}.attention.self.{name}" for name in ("query", "key", "value"))
        parts = zip(names, self.qkv.weight.chunk(3), self.qkv.bias.chunk(3), strict=True)
        for name, weight, bias in parts:
            yield f"{name}.weight", weight
            yield f"{name}.bias", bias
        yield from _named(f"{self.prefix}.attention.output.dense", self.attention_out)
        yield from _named(f"{self.prefix}.attention.output.LayerNorm", self.attention_norm)
        yield from _named(f"{self.prefix}.intermediate.dense", self.mlp_in)
        yield from _named(f"{self.prefix}.output.dense", self.mlp_out)
        yield from _named(f"{self.prefix}.output.LayerNorm", self.mlp_norm)


class Bert(nn.Module):
    """The encoder without the pooler that BERT was trained with: what becomes of the tokens is `pooling`'s matter."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(EncoderLayer(f"encoder.layer.{i}", config) for i in range(config.num_layers))

    def forward(self, token_ids_T: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """hidden_TH of sequences that follow each other; those of equal length had better be neighbours."""
        positions_T = torch.cat([torch.arange(length) for length in lengths]).to(token_ids_T.device)
        runs = [(len(list(equal)), length) for length, equal in groupby(lengths)]
        hidden_TH: torch.Tensor = self.embeddings(token_ids_T, positions_T)
        for layer in self.layers:
            hidden_TH = layer(hidden_TH, runs)
        return hidden_TH

    def weights(self) -> Weights:
        """The checkpoint's tensors by name, and where each goes."""
        for part in (self.embeddings, *self.layers):
            yield from part.weights()


def attend(qkv_TC: torch.Tensor, num_heads: int, runs: Runs) -> torch.Tensor:
    """Each sequence over itself, in both directions."""
    outputs = []
    parts = qkv_TC.split([count * length for count, length in runs])
    for part_TC, (count, length) in zip(parts, runs, strict=True):
        query_SNLD, key_SNLD, value_SNLD = part_TC.view(count, length, 3, num_heads, -1).permute(2, 0, 3, 1, 4)
        attended_SNLD = F.scaled_dot_product_attention(query_SNLD, key_SNLD, value_SNLD)
        outputs.append(attended_SNLD.transpose(1, 2).reshape(count * length, -1))
    return torch.cat(outputs)


def _named(name: str, module: nn.Linear | nn.LayerNorm) -> Weights:
    yield f"{name}.weight", module.weight
    yield f"{name}.bias", module.bias
