"""Stands in for the GPUs: it tells how long each step would take; its tokens say only whose they are."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from deploy.simulate.timing import DecodeTiming, Seconds, prefill_seconds
from replicas.plan import StepPlan, StepResults


@dataclass(slots=True)
class VirtualClock:
    """The time of one engine, in seconds. Whoever drives the engine sets it; a step moves it on."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(slots=True)
class _Row:
    """A sequence in the batch: its marker token, and how many of its tokens are prompt, computed, and known."""

    token_id: int
    num_prompt: int
    num_computed: int
    num_tokens: int

    @property
    def is_decoding(self) -> bool:
        return self.num_tokens - self.num_computed == 1 and self.num_tokens > self.num_prompt


class SimulatedExecutor:
    depth = 1

    def __init__(self, timing: DecodeTiming, clock: VirtualClock) -> None:
        self._timing = timing
        self._clock = clock
        self._rows: dict[int, _Row] = {}
        self._results: deque[tuple[float, list[int | None]]] = deque()

    def submit(self, plan: StepPlan) -> None:
        for slot in plan.released:
            del self._rows[slot]
        for admission in plan.admitted:
            known = len(admission.token_ids)
            row = _Row(admission.token_ids[-1], admission.num_prompt, admission.num_computed, known)
            self._rows[admission.slot] = row
        rows = [(self._rows[work.slot], work.num_tokens) for work in plan.work]
        context_tokens = sum(row.num_tokens for row, _ in rows if row.is_decoding)
        prefill_tokens = sum(num_tokens for row, num_tokens in rows if not row.is_decoding)
        seconds = prefill_seconds(prefill_tokens) + self._timing.seconds(context_tokens)
        self._results.append((seconds, [self._advance(work.slot, work.num_tokens) for work in plan.work]))

    def collect(self) -> StepResults:
        seconds, sampled = self._results.popleft()
        self._clock.now += seconds
        return StepResults(sampled)

    def close(self) -> None:
        self._rows.clear()

    @property
    def num_rows(self) -> int:
        return len(self._rows)

    def run_seconds(self, steps: int) -> Seconds:
        """Of each of the next `steps` steps if the batch stays as it is and all of it decodes."""
        context_tokens = sum(row.num_tokens for row in self._rows.values())
        return self._timing.run_seconds(context_tokens, len(self._rows), steps)

    def skip(self, steps: int) -> None:
        """Take it that so many decode steps were computed."""
        for row in self._rows.values():
            row.num_computed += steps
            row.num_tokens += steps

    def _advance(self, slot: int, num_tokens: int) -> int | None:
        row = self._rows[slot]
        row.num_computed += num_tokens
        if row.num_computed < row.num_tokens:
            return None
        row.num_tokens += 1
        return row.token_id
