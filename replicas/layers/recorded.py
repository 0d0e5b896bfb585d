"""Decodes, computed by making the kernel calls of an earlier step again.

A step of few tokens takes the processor hardly longer than Python takes to ask for it, and one of many still long. The
calls of one such step serve all that have as many tokens, if what differs lies in the same memory: hidden states,
angles, slots, block tables, lengths. The idea is that of CUDA graphs. Only kernels may be recorded.

Shape suffixes: T tokens and as many sequences, H hidden, B blocks of the longest sequence that fits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from replicas.batch import ForwardBatch, KvLayer
from replicas.kernels.cpu.calls import Recording, recording
from replicas.kernels.cpu.functions import AttentionStep, attention
from replicas.layers.attention import Attend
from replicas.layers.ops import CosSin

MOST_TOKENS = 64
FEWEST_BLOCKS = 64

RunLayers = Callable[[torch.Tensor, CosSin, torch.Tensor, Sequence[KvLayer], Mapping[int, Attend]], torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Inputs:
    """Where the recorded calls read what changes from step to step."""

    hidden_TH: torch.Tensor
    cos_sin: CosSin
    slots_T: torch.Tensor
    block_tables_TB: torch.Tensor
    context_lens_T: torch.Tensor

    @classmethod
    def like(cls, hidden_TH: torch.Tensor, cos_sin: CosSin, num_blocks: int) -> _Inputs:
        count = len(hidden_TH)
        return cls(
            torch.empty_like(hidden_TH),
            (torch.empty_like(cos_sin[0]), torch.empty_like(cos_sin[1])),
            torch.empty(count, dtype=torch.int64),
            torch.zeros(count, num_blocks, dtype=torch.int64),
            torch.empty(count, dtype=torch.int32),
        )

    def fill(self, hidden_TH: torch.Tensor, cos_sin: CosSin, batch: ForwardBatch) -> None:
        self.hidden_TH.copy_(hidden_TH)
        self.cos_sin[0].copy_(cos_sin[0])
        self.cos_sin[1].copy_(cos_sin[1])
        self.slots_T.copy_(batch.slots_T)
        self.block_tables_TB[:, : batch.block_tables_SB.size(1)].copy_(batch.block_tables_SB)
        self.context_lens_T.copy_(torch.tensor(batch.context_lens))


@dataclass(frozen=True, slots=True)
class _RecordedStep:
    inputs: _Inputs
    calls: Recording
    hidden_TH: torch.Tensor


class RecordedDecodes:
    """The recordings of one model's layers, by number of tokens and room for blocks."""

    def __init__(self) -> None:
        self._steps: dict[tuple[int, int, int], _RecordedStep] = {}

    def takes(self, batch: ForwardBatch) -> bool:
        """Whether the step is decodes and nothing else, and not too many."""
        return len(batch.token_ids_T) <= MOST_TOKENS and len(batch.token_ids_T) == len(batch.context_lens)

    def run(
        self,
        run_layers: RunLayers,
        hidden_TH: torch.Tensor,
        cos_sin: CosSin,
        batch: ForwardBatch,
        kv_layers: Sequence[KvLayer],
    ) -> torch.Tensor:
        """What `run_layers` returns. It is overwritten by the next step of as many tokens."""
        num_blocks = max(FEWEST_BLOCKS, 1 << (batch.block_tables_SB.size(1) - 1).bit_length())
        key = len(hidden_TH), num_blocks, kv_layers[0].keys_NPKD.data_ptr()
        if key in self._steps:
            step = self._steps[key]
            step.inputs.fill(hidden_TH, cos_sin, batch)
            step.calls.replay()
        else:
            inputs = _Inputs.like(hidden_TH, cos_sin, num_blocks)
            inputs.fill(hidden_TH, cos_sin, batch)
            step = self._steps[key] = _record(run_layers, inputs, kv_layers)
        return step.hidden_TH


def _record(run_layers: RunLayers, inputs: _Inputs, kv_layers: Sequence[KvLayer]) -> _RecordedStep:
    starts = torch.arange(len(inputs.hidden_TH) + 1, dtype=torch.int32)

    class Attends(dict[int, Attend]):
        def __missing__(self, window: int) -> Attend:
            step = AttentionStep(inputs.block_tables_TB, starts, inputs.context_lens_T, window)
            self[window] = partial(attention, step)
            return self[window]

    with recording() as calls:
        calls.keep.append(starts)
        hidden_TH = run_layers(inputs.hidden_TH, inputs.cos_sin, inputs.slots_T, kv_layers, Attends())
    calls.close(hidden_TH)
    return _RecordedStep(inputs, calls, hidden_TH)
