"""Runs one rank's part of the model over the steps' plans, on a mirror of the batch that the plans keep up to date.

Shape suffixes: T tokens of the step, S sequences, B blocks of the longest sequence, R rows to sample, H hidden.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from replicas.batch import ForwardBatch, KvLayer
from replicas.models.llama import CausalLM
from replicas.plan import Admission, StepPlan
from replicas.ranks.links import NO_TOKEN, StageLinks
from replicas.sampling.params import SamplingParams
from replicas.sampling.sampler import SampleRow
from replicas.sampling.sharded import sample_sharded


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


@dataclass(slots=True)
class Step:
    """A step that was started. `results` has one entry for each work row, None where nothing was sampled; it is
    None as long as the last stage has not told."""

    rows: list[Row]
    results: list[int | None] | None


class ModelRunner:
    """`eos_token_ids` may not be sampled before a request's min_tokens. Without `links` it computes the whole model."""

    def __init__(
        self,
        model: CausalLM,
        kv_layers: Sequence[KvLayer],
        block_size: int,
        max_running: int,
        eos_token_ids: tuple[int, ...],
        links: StageLinks | None = None,
    ) -> None:
        self._model = model
        self._kv_layers = kv_layers
        self._block_size = block_size
        self._eos_token_ids = eos_token_ids
        self._links = links
        scaling = model.config.rope_scaling
        self._rope_is_dynamic = scaling is not None and scaling.kind == "dynamic"
        self._rows: list[Row | None] = [None] * max_running
        self._unanswered: deque[Step] = deque()

    @property
    def knows_results(self) -> bool:
        """Whether this stage draws the tokens, or hears of them."""
        return self._model.head is not None or (self._links is not None and self._links.results_in is not None)

    def execute(self, plan: StepPlan) -> list[int | None]:
        """Compute a step. Returns, for each work row, the token sampled after its last token, or None."""
        return self.finish(self.start(plan))

    def expect(self, plan: StepPlan) -> None:
        """Make ready for a plan that is about to be started, in a pipeline: call it before, in the plans' order."""
        if self._links is not None and plan.work:
            self._links.expect(plan)

    @torch.inference_mode()
    def start(self, plan: StepPlan) -> Step:
        """Compute this stage's part of a step."""
        for slot in plan.released:
            self._rows[slot] = None
        for admission in plan.admitted:
            self._rows[admission.slot] = _mirror(admission)
        if not plan.work:
            return Step([], [])
        rows = [self._row(work.slot) for work in plan.work]
        for row, work in zip(rows, plan.work, strict=True):
            row.block_ids += work.new_block_ids
        self._await_tokens(rows)
        batch = self._batch(rows, [work.num_tokens for work in plan.work])
        hidden_TH = self._forward(batch)
        for row, work in zip(rows, plan.work, strict=True):
            row.num_computed += work.num_tokens
        if self._model.head is None:
            return self._hand_on(hidden_TH, rows)
        growing = [row for row in rows if row.num_computed == len(row.token_ids)]
        tokens = iter(self._sample(hidden_TH[batch.logit_rows_R], growing))
        results = [next(tokens) if row.num_computed == len(row.token_ids) else None for row in rows]
        for row, token_id in zip(rows, results, strict=True):
            if token_id is not None:
                row.token_ids.append(token_id)
        if self._links is not None:
            self._links.send_results(results)
        return Step(rows, results)

    def finish(self, step: Step) -> list[int | None]:
        """A step's results, once the last stage has told them to this one, the first."""
        while step.results is None:
            self._take_results()
        return step.results

    def close(self) -> None:
        """Take all that the other stages still send, and wait until they have all that this one sent."""
        while self._unanswered:
            self._take_results()
        if self._links is not None:
            self._links.flush()

    def _forward(self, batch: ForwardBatch) -> torch.Tensor:
        hidden_TH = None if self._links is None else self._links.receive_hidden()
        return self._model(batch, self._kv_layers, hidden_TH)

    def _hand_on(self, hidden_TH: torch.Tensor, rows: list[Row]) -> Step:
        """Leave the rest of a step to the next stages. Where a token will be sampled, its place is kept."""
        assert self._links is not None
        assert self._links.hidden_out is not None
        self._links.hidden_out.send(hidden_TH)
        for row in rows:
            if row.num_computed == len(row.token_ids):
                row.token_ids.append(NO_TOKEN)
        step = Step(rows, None)
        if self._links.results_in is not None:
            self._unanswered.append(step)
        return step

    def _await_tokens(self, rows: list[Row]) -> None:
        """In the first stage: wait for the tokens that this step feeds on. No other stage reads them."""
        while self._unanswered and any(row.token_ids[-1] == NO_TOKEN for row in rows):
            self._take_results()

    def _take_results(self) -> None:
        assert self._links is not None
        step = self._unanswered.popleft()
        step.results = self._links.receive_results()
        for row, token_id in zip(step.rows, step.results, strict=True):
            if token_id is not None:
                row.token_ids[-1] = token_id

    def _row(self, slot: int) -> Row:
        row = self._rows[slot]
        assert row is not None, f"slot {slot} is empty"
        return row

    def _sample(self, hidden_RH: torch.Tensor, rows: list[Row]) -> list[int]:
        if not rows:
            return []
        assert self._model.head is not None
        sample_rows = [SampleRow(row.sampling, len(row.token_ids), self._banned(row)) for row in rows]
        return sample_sharded(self._model.head, hidden_RH, sample_rows).tolist()

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
