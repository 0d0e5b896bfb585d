"""Runs one rank's part of the model over the steps' plans, on a mirror of the batch that the plans keep up to date.

Shape suffixes: T tokens of the step, S sequences, B blocks of the longest sequence, R rows to sample, H hidden.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import torch

from replicas.batch import ForwardBatch, KvLayer
from replicas.messages import TokenLogprobs
from replicas.models.llama import CausalLM
from replicas.plan import Admission, Masks, StepPlan, StepResults
from replicas.ranks.links import NO_TOKEN, StageLinks
from replicas.ranks.logprob_numbers import Asked
from replicas.sampling.logprobs import score
from replicas.sampling.params import SamplingParams
from replicas.sampling.sharded import Drawn, sample_sharded
from replicas.sampling.state import SamplingState


@dataclass(slots=True)
class Row:
    """The mirror of one running sequence; `state` only where its tokens are drawn."""

    token_ids: list[int]
    num_prompt: int
    num_computed: int
    block_ids: list[int]
    sampling: SamplingParams
    num_scored: int
    state: SamplingState | None = None

    @property
    def is_complete(self) -> bool:
        """Whether its next token can be drawn."""
        return self.num_computed == len(self.token_ids)

    def take_scores(self) -> range:
        """The prompt tokens whose log probabilities are wanted, and follow from what the present step has computed."""
        targets = range(self.num_scored, min(self.num_computed + 1, self.num_prompt))
        self.num_scored = max(self.num_scored, targets.stop)
        return targets


@dataclass(slots=True)
class Step:
    """A step that was started. `results` is None as long as the last stage has not told; `asked` says what log
    probabilities are in them."""

    rows: list[Row]
    results: StepResults | None
    asked: list[Asked] = field(default_factory=list)


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

    def execute(self, plan: StepPlan) -> StepResults:
        """Compute a step."""
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
            self._rows[admission.slot] = self._mirror(admission)
        if not plan.work:
            return Step([], StepResults([]))
        rows = [self._row(work.slot) for work in plan.work]
        for row, work in zip(rows, plan.work, strict=True):
            row.block_ids += work.new_block_ids
        self._await_tokens(rows)
        batch = self._batch(rows, [work.num_tokens for work in plan.work])
        hidden_TH = self._forward(batch)
        targets = []
        for row, work in zip(rows, plan.work, strict=True):
            row.num_computed += work.num_tokens
            targets.append(row.take_scores())
        asked = _asked(rows, targets)
        if self._model.head is None:
            return self._hand_on(hidden_TH, rows, asked)
        drawn = self._sample(hidden_TH[batch.logit_rows_R], rows, plan.masks)
        results = _by_work_row(rows, drawn, self._score(hidden_TH, batch, rows, targets))
        for row, token_id in zip(rows, results.token_ids, strict=True):
            if token_id is not None:
                row.token_ids.append(token_id)
        if self._links is not None:
            self._links.send_results(results, asked)
        return Step(rows, results, asked)

    def finish(self, step: Step) -> StepResults:
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

    def _hand_on(self, hidden_TH: torch.Tensor, rows: list[Row], asked: list[Asked]) -> Step:
        """Leave the rest of a step to the next stages. Where a token will be sampled, its place is kept."""
        assert self._links is not None
        assert self._links.hidden_out is not None
        self._links.hidden_out.send(hidden_TH)
        for row in rows:
            if row.is_complete:
                row.token_ids.append(NO_TOKEN)
        step = Step(rows, None, asked)
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
        step.results = self._links.receive_results(step.asked)
        for row, token_id in zip(step.rows, step.results.token_ids, strict=True):
            if token_id is not None:
                row.token_ids[-1] = token_id

    def _row(self, slot: int) -> Row:
        row = self._rows[slot]
        assert row is not None, f"slot {slot} is empty"
        return row

    def _mirror(self, admission: Admission) -> Row:
        row = Row(
            list(admission.token_ids),
            admission.num_prompt,
            admission.num_computed,
            list(admission.block_ids),
            admission.sampling,
            max(admission.num_scored, 1),
        )
        if self._model.head is not None:
            row.state = SamplingState(row.sampling, row.token_ids, row.num_prompt, self._eos_token_ids)
        return row

    def _sample(self, hidden_RH: torch.Tensor, rows: list[Row], masks: Masks | None) -> Drawn:
        """Draw a token for each complete one of the work rows."""
        if not len(hidden_RH):
            return Drawn([])
        assert self._model.head is not None
        bitmasks = {} if masks is None else dict(zip(masks.rows, masks.words_NW, strict=True))
        sample_rows = [
            row.state.next_row(row.token_ids, bitmasks.get(index))
            for index, row in enumerate(rows)
            if row.is_complete and row.state is not None
        ]
        return sample_sharded(self._model.head, hidden_RH, sample_rows)

    def _score(
        self, hidden_TH: torch.Tensor, batch: ForwardBatch, rows: list[Row], targets: list[range]
    ) -> dict[int, list[TokenLogprobs]]:
        """By work row, the log probabilities of the prompt's tokens at `targets`."""
        scored = [(index, places) for index, places in enumerate(targets) if places]
        if not scored:
            return {}
        assert self._model.head is not None
        hidden_rows: list[int] = []
        token_ids: list[int] = []
        counts: list[int] = []
        for index, places in scored:
            row, behind = rows[index], batch.query_starts[index + 1] - 1 - rows[index].num_computed
            hidden_rows += range(places.start + behind, places.stop + behind)
            token_ids += row.token_ids[places.start : places.stop]
            counts += [row.sampling.prompt_logprobs or 0] * len(places)
        entries = iter(score(self._model.head, hidden_TH[hidden_rows], token_ids, counts))
        return {index: list(islice(entries, len(places))) for index, places in scored}

    def _batch(self, rows: list[Row], num_tokens: list[int]) -> ForwardBatch:
        """All rows at once, since a step has little time for Python."""
        device = self._kv_layers[0].keys_NPKD.device
        first_S = np.array([row.num_computed for row in rows])
        counts_S = np.array(num_tokens)
        stops_S = first_S + counts_S
        query_stops_S = counts_S.cumsum()
        rows_T = np.repeat(np.arange(len(rows)), counts_S)
        positions_T = np.arange(len(rows_T)) + (stops_S - query_stops_S)[rows_T]
        block_tables_SB = np.zeros((len(rows), max(len(row.block_ids) for row in rows)), dtype=np.int64)
        for table_B, row in zip(block_tables_SB, rows, strict=True):
            table_B[: len(row.block_ids)] = row.block_ids
        blocks_T = block_tables_SB[rows_T, positions_T // self._block_size]
        context_lens = stops_S.tolist()
        spans = zip(rows, first_S.tolist(), context_lens, strict=True)
        token_ids = [token_id for row, start, stop in spans for token_id in row.token_ids[start:stop]]
        samples_S = stops_S == np.array([len(row.token_ids) for row in rows])
        rope_lengths_T = None
        if self._rope_is_dynamic:
            prompts_S = np.array([row.num_prompt for row in rows])
            rope_lengths_T = torch.from_numpy(np.maximum(positions_T + 1, prompts_S[rows_T])).to(device)
        return ForwardBatch(
            token_ids_T=torch.tensor(token_ids, device=device),
            positions_T=torch.from_numpy(positions_T).to(device),
            slots_T=torch.from_numpy(blocks_T * self._block_size + positions_T % self._block_size).to(device),
            block_tables_SB=torch.from_numpy(block_tables_SB).to(device),
            logit_rows_R=torch.from_numpy(query_stops_S[samples_S] - 1).to(device),
            query_starts=[0, *query_stops_S.tolist()],
            context_lens=context_lens,
            rope_lengths_T=rope_lengths_T,
        )


def _asked(rows: list[Row], targets: list[range]) -> list[Asked]:
    """What log probabilities a step owes to its rows."""
    asked = []
    for index, (row, places) in enumerate(zip(rows, targets, strict=True)):
        top = row.sampling.logprobs if row.is_complete else None
        if places or top is not None:
            asked.append(Asked(index, len(places), row.sampling.prompt_logprobs or 0, top))
    return asked


def _by_work_row(rows: list[Row], drawn: Drawn, prompt_logprobs: dict[int, list[TokenLogprobs]]) -> StepResults:
    """The results of all rows, of which some got a token."""
    complete = [index for index, row in enumerate(rows) if row.is_complete]
    token_ids: list[int | None] = [None] * len(rows)
    for index, token_id in zip(complete, drawn.token_ids, strict=True):
        token_ids[index] = token_id
    return StepResults(token_ids, {complete[place]: entry for place, entry in drawn.logprobs.items()}, prompt_logprobs)
