"""What the stages of a pipeline tell each other about a step: hidden states down the line, sampled tokens back.

The tokens go from the last stage straight to the first, which embeds them, over the CPUs' group: rank 0's scheduler
needs them there anyway. A step's results are one number for each work row, so even a step that samples nothing
is answered, and the first stage never runs further ahead than the engine lets it.

Shape suffixes: T tokens of the step, H hidden.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from parallel.groups import RankGroup
from parallel.pipeline import Inbox, Outbox
from replicas.plan import StepPlan

NO_TOKEN = -1


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

    @classmethod
    def of(cls, group: RankGroup, hidden_size: int, dtype: torch.dtype) -> StageLinks:
        mesh, control = group.mesh, group.control
        first, last, stage = mesh.is_first_stage, mesh.is_last_stage, mesh.pipeline_rank
        depth = mesh.pipeline
        return cls(
            hidden_size,
            dtype,
            group.device,
            hidden_in=None if first else Inbox(mesh.peer(stage - 1)),
            hidden_out=None if last else Outbox(mesh.peer(stage + 1), depth),
            results_in=Inbox(mesh.peer(depth - 1), control) if first and not last else None,
            results_out=Outbox(mesh.peer(0), depth, control) if last and not first else None,
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

    def receive_results(self) -> list[int | None]:
        """Wait for the oldest step that was not yet answered."""
        assert self.results_in is not None, "only the first stage hears of results"
        return [None if token_id == NO_TOKEN else token_id for token_id in self.results_in.receive().tolist()]

    def send_results(self, results: list[int | None]) -> None:
        if self.results_out is not None:
            numbers = [NO_TOKEN if token_id is None else token_id for token_id in results]
            self.results_out.send(torch.tensor(numbers, dtype=torch.int64))

    def flush(self) -> None:
        """Wait until the other stages have taken everything."""
        for outbox in (self.hidden_out, self.results_out):
            if outbox is not None:
                outbox.flush()
