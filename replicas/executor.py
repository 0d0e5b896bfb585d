"""Where a step is computed. `submit` and `collect` are separate so that a step can be planned while one runs."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from replicas.plan import StepPlan, StepResults

if TYPE_CHECKING:
    from replicas.runner import ModelRunner


class Executor(Protocol):
    """Computes steps in the order of their plans. `depth` is how many it wants submitted before the first is
    collected: the stages of a pipeline."""

    depth: int

    def submit(self, plan: StepPlan) -> None:
        """Start a step."""

    def collect(self) -> StepResults:
        """Wait for the oldest submitted step."""

    def close(self) -> None:
        """Free what the executor holds. It is not used afterwards."""


class InProcessExecutor:
    """One rank, in the caller's thread."""

    depth = 1

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._results: deque[StepResults] = deque()

    def submit(self, plan: StepPlan) -> None:
        self._results.append(self._runner.execute(plan))

    def collect(self) -> StepResults:
        return self._results.popleft()

    def close(self) -> None:
        self._results.clear()
