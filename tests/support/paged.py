"""Runs a model over a paged KV cache in chunks, without an engine: for comparisons of logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from parallel.mesh import Mesh
from replicas.batch import ForwardBatch, KvLayer
from replicas.layers.attention import allocate_kv_layers
from replicas.models.llama import CausalLM


@dataclass
class PagedSequence:
    """A sequence's tokens so far and the blocks that hold them, deliberately out of order in the pool."""

    block_ids: list[int]
    num_prompt: int
    num_computed: int = 0
    token_ids: list[int] = field(default_factory=list)


def forward_batch(
    sequences: Sequence[PagedSequence], new_token_ids: Sequence[Sequence[int]], block_size: int
) -> ForwardBatch:
    """The step that computes these tokens next; updates the sequences."""
    positions, slots, starts = [], [], [0]
    for sequence, token_ids in zip(sequences, new_token_ids, strict=True):
        start = sequence.num_computed
        sequence.num_computed += len(token_ids)
        sequence.token_ids += token_ids
        assert sequence.num_computed <= len(sequence.block_ids) * block_size
        positions += range(start, sequence.num_computed)
        slots += [
            sequence.block_ids[position // block_size] * block_size + position % block_size
            for position in range(start, sequence.num_computed)
        ]
        starts.append(starts[-1] + len(token_ids))
    width = max(len(sequence.block_ids) for sequence in sequences)
    tables = [sequence.block_ids + [0] * (width - len(sequence.block_ids)) for sequence in sequences]
    prompts = [sequence.num_prompt for sequence, ids in zip(sequences, new_token_ids, strict=True) for _ in ids]
    return ForwardBatch(
        token_ids_T=torch.tensor([token_id for token_ids in new_token_ids for token_id in token_ids]),
        positions_T=torch.tensor(positions),
        slots_T=torch.tensor(slots),
        block_tables_SB=torch.tensor(tables),
        logit_rows_R=torch.tensor(starts[1:]) - 1,
        query_starts=starts,
        context_lens=[sequence.num_computed for sequence in sequences],
        rope_lengths_T=torch.tensor([max(prompt, p + 1) for prompt, p in zip(prompts, positions, strict=True)]),
    )


class PagedRun:
    """A model, its cache and some sequences that share it. The pool starts full of NaN: a slot that is read before
    it is written shows."""

    def __init__(
        self,
        model: CausalLM,
        lengths: Sequence[int],
        num_prompts: Sequence[int] | None = None,
        block_size: int = 4,
        mesh: Mesh | None = None,
    ) -> None:
        blocks = [-(-length // block_size) for length in lengths]
        order = iter(torch.randperm(sum(blocks) + 1, generator=torch.Generator().manual_seed(0)).tolist())
        prompts = lengths if num_prompts is None else num_prompts
        self.model = model
        self.block_size = block_size
        self.sequences = [
            PagedSequence([next(order) for _ in range(count)], prompt)
            for count, prompt in zip(blocks, prompts, strict=True)
        ]
        dtype = model.norm.weight.dtype
        self.kv_layers: list[KvLayer] = allocate_kv_layers(
            model.config, mesh or Mesh(), sum(blocks) + 1, block_size, dtype, torch.device("cpu")
        )
        for layer in self.kv_layers:
            layer.keys_NPKD.fill_(float("nan"))
            layer.values_NPKD.fill_(float("nan"))

    @torch.inference_mode()
    def step(self, new_token_ids: Sequence[Sequence[int]], indices: Sequence[int] | None = None) -> torch.Tensor:
        """Compute the next tokens of the sequences (of those with `indices`); logits_TV of all of them."""
        sequences = self.sequences if indices is None else [self.sequences[index] for index in indices]
        batch = forward_batch(sequences, new_token_ids, self.block_size)
        return self.model.logits(self.model(batch, self.kv_layers))


def chunked_logits(model: CausalLM, token_ids: Sequence[int], chunk: int, mesh: Mesh | None = None) -> torch.Tensor:
    """logits_TV of one prompt computed `chunk` tokens at a time."""
    run = PagedRun(model, [len(token_ids)], mesh=mesh)
    steps = [run.step([token_ids[start : start + chunk]]) for start in range(0, len(token_ids), chunk)]
    return torch.cat(steps)
