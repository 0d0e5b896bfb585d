"""Runs one rank's model over the steps' plans, on a mirror of the batch that the plans keep up to date.

Shape suffixes: T tokens of the step, S sequences, B blocks of the longest sequence, R rows to sample, H hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from replicas.batch import ForwardBatch, KvLayer
from replicas.models.llama import CausalLM
from replicas.plan import Admission, StepPlan
from replicas.sampling.params import SamplingParams
from replicas.sampling.sampler import SampleRow, sample


@dataclass(slots=True)
class Row:
    """The mirror of one running sequence."""

    token_ids: list[int]
    num_prompt: int
    num_computed: int
    block_ids: list[int]
    sampling: SamplingParams


@dataclass(slots=True)
class _Rows:
    """One step's sequences, column by column, before they become tensors."""

    token_ids: list[int] = field(default_factory=list)
    positions: list[np.ndarray] = field(default_factory=list)
    slots: list[np.ndarray] = field(default_factory=list)
    rope_lengths: list[np.ndarray] = field(default_factory=list)
    query_starts: list[int] = field(default_factory=lambda: [0])
    context_lens: list[int] = field(default_factory=list)
    logit_rows: list[int] = field(default_factory=list)


class ModelRunner:
    """`eos_token_ids` may not be sampled before a request's min_tokens."""

    def __init__(
        self,
        model: CausalLM,
        kv_layers: Sequence[KvLayer],
        block_size: int,
        max_running: int,
        eos_token_ids: tuple[int, ...],
    ) -> None:
        self._model = model
        self._kv_layers = kv_layers
        self._block_size = block_size
        self._eos_token_ids = eos_token_ids
        scaling = model.config.rope_scaling
        self._rope_is_dynamic = scaling is not None and scaling.kind == "dynamic"
        self._rows: list[Row | None] = [None] * max_running

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> list[int | None]:
        """Compute a step. Returns, for each work row, the token sampled after its last token, or None."""
        for slot in plan.released:
            self._rows[slot] = None
        for admission in plan.admitted:
            self._rows[admission.slot] = _mirror(admission)
        if not plan.work:
            return []
        rows = [self._row(work.slot) for work in plan.work]
        for row, work in zip(rows, plan.work, strict=True):
            row.block_ids += work.new_block_ids
        batch = self._batch(rows, [work.num_tokens for work in plan.work])
        hidden_TH = self._model(batch, self._kv_layers)
        for row, work in zip(rows, plan.work, strict=True):
            row.num_computed += work.num_tokens
        sampling = [row for row in rows if row.num_computed == len(row.token_ids)]
        tokens = iter(self._sample(hidden_TH[batch.logit_rows_R], sampling))
        results: list[int | None] = []
        for row in rows:
            token_id = next(tokens) if row.num_computed == len(row.token_ids) else None
            if token_id is not None:
                row.token_ids.append(token_id)
            results.append(token_id)
        return results

    def _row(self, slot: int) -> Row:
        row = self._rows[slot]
        assert row is not None, f"slot {slot} is empty"
        return row

    def _sample(self, hidden_RH: torch.Tensor, rows: list[Row]) -> list[int]:
        if not rows:
            return []
        logits_RV = self._model.logits(hidden_RH)
        sample_rows = [SampleRow(row.sampling, len(row.token_ids), self._banned(row)) for row in rows]
        return sample(logits_RV, sample_rows).tolist()

    def _banned(self, row: Row) -> tuple[int, ...]:
        sampling = row.sampling
        if len(row.token_ids) - row.num_prompt >= sampling.min_tokens:
            return ()
        return sampling.stop_token_ids if sampling.ignore_eos else sampling.stop_token_ids + self._eos_token_ids

    def _batch(self, rows: list[Row], num_tokens: list[int]) -> ForwardBatch:
        columns = _Rows()
        width = max(len(row.block_ids) for row in rows)
        block_tables_SB = np.zeros((len(rows), width), dtype=np.int64)
        for index, (row, count) in enumerate(zip(rows, num_tokens, strict=True)):
            end = row.num_computed + count
            block_tables_SB[index, : len(row.block_ids)] = row.block_ids
            positions = np.arange(row.num_computed, end)
            blocks = block_tables_SB[index, positions // self._block_size]
            columns.token_ids += row.token_ids[row.num_computed : end]
            columns.positions.append(positions)
            columns.rope_lengths.append(np.maximum(positions + 1, row.num_prompt))
            columns.slots.append(blocks * self._block_size + positions % self._block_size)
            columns.query_starts.append(columns.query_starts[-1] + count)
            columns.context_lens.append(end)
            if end == len(row.token_ids):
                columns.logit_rows.append(columns.query_starts[-1] - 1)
        return self._to_device(columns, block_tables_SB)

    def _to_device(self, columns: _Rows, block_tables_SB: np.ndarray) -> ForwardBatch:
        device = self._kv_layers[0].keys_NPKD.device

        def joined(parts: list[np.ndarray]) -> torch.Tensor:
            return torch.from_numpy(np.concatenate(parts)).to(device)

        return ForwardBatch(
            token_ids_T=torch.tensor(columns.token_ids, device=device),
            positions_T=joined(columns.positions),
            slots_T=joined(columns.slots),
            block_tables_SB=torch.from_numpy(block_tables_SB).to(device),
            logit_rows_R=torch.tensor(columns.logit_rows, dtype=torch.int64, device=device),
            query_starts=columns.query_starts,
            context_lens=columns.context_lens,
            rope_lengths_T=joined(columns.rope_lengths) if self._rope_is_dynamic else None,
        )


def _mirror(admission: Admission) -> Row:
    return Row(
        list(admission.token_ids),
        admission.num_prompt,
        admission.num_computed,
        list(admission.block_ids),
        admission.sampling,
    )
