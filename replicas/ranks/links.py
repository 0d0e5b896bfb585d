"""What the stages of a pipeline tell each other about a step: hidden states down the line, sampled tokens back.

The tokens go from the last stage straight to the first, which embeds them, over the CPUs' group: rank 0's scheduler
needs them there anyway. A step's results are one number for each work row, so even a step that samples nothing
is answered, and the first stage never runs further ahead than the engine lets it. Log probabilities follow for rank 0
alone, if a request asks for any.

Shape suffixes: T tokens of the step, H hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from parallel.groups import RankGroup
from parallel.pipeline import Inbox, Outbox
from replicas.plan import StepPlan, StepResults
from replicas.ranks.logprob_numbers import Asked, flattened, num_numbers, unflattened

NO_TOKEN = -1
LOGPROBS_TAG = 1


@dataclass(frozen=True, slots=True)
class StageLinks:
    """This stage's connections; those that its place in the pipeline doesn't need are None."""

    hidden_size: int
    dtype: torch.dtype
    device: torch.device
    hidden_in: Inbox | None = None
    hidden_out: Outbox | None = None
    results_in: Inbox | None = None
    results_out: Outbox | None = None
    logprobs_in: Inbox | None = None
    logprobs_out: Outbox | None = None

    @classmethod
    def of(cls, group: RankGroup, hidden_size: int, dtype: torch.dtype) -> StageLinks:
        mesh, control = group.mesh, group.control
        first, last, stage = mesh.is_first_stage, mesh.is_last_stage, mesh.pipeline_rank
        depth, leads = mesh.pipeline, mesh.tensor_rank == 0
        return cls(
            hidden_size,
            dtype,
            group.device,
            hidden_in=None if first else Inbox(mesh.peer(stage - 1)),
            hidden_out=None if last else Outbox(mesh.peer(stage + 1), depth),
            results_in=Inbox(mesh.peer(depth - 1), control) if first and not last else None,
            results_out=Outbox(mesh.peer(0), depth, control) if last and not first else None,
            logprobs_in=Inbox(mesh.peer(depth - 1), control, LOGPROBS_TAG) if first and not last and leads else None,
            logprobs_out=Outbox(mesh.peer(0), depth, control, LOGPROBS_TAG) if last and not first and leads else None,
        )

    def expect(self, plan: StepPlan) -> None:
        """Make ready for what the other stages will send in this step."""
        if self.hidden_in is not None:
            num_tokens = sum(work.num_tokens for work in plan.work)
            self.hidden_in.expect(torch.empty(num_tokens, self.hidden_size, dtype=self.dtype, device=self.device))
        if self.results_in is not None:
            self.results_in.expect(torch.empty(len(plan.work), dtype=torch.int64))

    def receive_hidden(self) -> torch.Tensor | None:
        return None if self.hidden_in is None else self.hidden_in.receive()

    def receive_results(self, asked: Sequence[Asked]) -> StepResults:
        """Wait for the oldest step that was not yet answered. `asked` says which log probabilities it has."""
        assert self.results_in is not None, "only the first stage hears of results"
        token_ids = [None if token_id == NO_TOKEN else token_id for token_id in self.results_in.receive().tolist()]
        if self.logprobs_in is None or not (size := num_numbers(asked)):
            return StepResults(token_ids)
        self.logprobs_in.expect(torch.empty(size, dtype=torch.float64))
        return unflattened(token_ids, asked, self.logprobs_in.receive().tolist())

    def send_results(self, results: StepResults, asked: Sequence[Asked]) -> None:
        if self.results_out is not None:
            numbers = [NO_TOKEN if token_id is None else token_id for token_id in results.token_ids]
            self.results_out.send(torch.tensor(numbers, dtype=torch.int64))
        if self.logprobs_out is not None and num_numbers(asked):
            self.logprobs_out.send(torch.tensor(flattened(results, asked), dtype=torch.float64))

    def flush(self) -> None:
        """Wait until the other stages have taken everything."""
        for outbox in (self.hidden_out, self.results_out, self.logprobs_out):
            if outbox is not None:
                outbox.flush()
