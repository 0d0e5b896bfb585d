"""The executor over several ranks: rank 0 computes its part in the engine's thread, the others follow its plans."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from parallel.watchdog import SILENCE_SECONDS
from replicas.plan import StepPlan, StepResults
from replicas.ranks.agreement import Mark, encode_mark
from replicas.ranks.leader import Lead
from replicas.ranks.plan_codec import encode_plan
from replicas.runner import ModelRunner, Step

VERDICT_SECONDS = SILENCE_SECONDS + 1


class GroupExecutor:
    """`leave` ends the group. As many steps are in flight as there are stages."""

    def __init__(self, runner: ModelRunner, leader: Lead, leave: Callable[[], None]) -> None:
        self.depth = leader.group.mesh.pipeline
        self._runner = runner
        self._leader = leader
        self._leave = leave
        self._steps: deque[Step] = deque()
        self._collected = Mark()

    def submit(self, plan: StepPlan) -> None:
        with self._watched():
            self._leader.tell(encode_mark(self._collected) + encode_plan(plan))
            self._runner.expect(plan)
            self._steps.append(self._runner.start(plan))

    def collect(self) -> StepResults:
        with self._watched():
            results = self._runner.finish(self._steps.popleft())
        self._collected = self._collected.after(results.token_ids)
        return results

    def close(self) -> None:
        while self._steps:
            self.collect()
        self._runner.close()
        self._leave()

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """When another rank dies, a collective may fail here before the watchdog has looked: the word is its."""
        try:
            yield
        except (RuntimeError, ConnectionError):
            self._leader.watchdog.join(VERDICT_SECONDS)
            raise
