"""An engine whose steps take a fixed time and compute nothing: what is left is the price of everything around it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from replicas.config import EngineConfig
from replicas.engine import Engine, ServedModel
from replicas.plan import StepPlan, StepResults

VOCAB_SIZE = 49152
FIRST_WORD = 300  # below lie special tokens and single bytes
MAX_MODEL_LEN = 8192
NUM_BLOCKS = 65536


class SleepingExecutor:
    """Ends each step `step_seconds` after its submission; the tokens are arbitrary words of the vocabulary."""

    depth = 1

    def __init__(self, step_seconds: float) -> None:
        self._step_seconds = step_seconds
        self._pending: dict[int, int] = {}
        self._results: deque[tuple[float, list[int | None]]] = deque()
        self._drawn = 0

    def submit(self, plan: StepPlan) -> None:
        for admission in plan.admitted:
            self._pending[admission.slot] = len(admission.token_ids) - admission.num_computed
        tokens = [self._advance(work.slot, work.num_tokens) for work in plan.work]
        self._results.append((time.monotonic() + self._step_seconds if tokens else 0.0, tokens))

    def collect(self) -> StepResults:
        due, tokens = self._results.popleft()
        if (rest := due - time.monotonic()) > 0:
            time.sleep(rest)
        return StepResults(tokens)

    def close(self) -> None:
        self._pending.clear()

    def _advance(self, slot: int, num_tokens: int) -> int | None:
        self._pending[slot] -= num_tokens
        if self._pending[slot] > 0:
            return None
        self._pending[slot] = 1
        self._drawn += 7919
        return FIRST_WORD + self._drawn % (VOCAB_SIZE - FIRST_WORD)


def build_sleeping_engine(
    path: str, config: EngineConfig, on_stage: Callable[[str, float], None], step_seconds: float
) -> Engine:
    """An engine builder; `path` lends the tokenizer to the gateway and is not read here."""
    model = ServedModel("sleeping", VOCAB_SIZE, MAX_MODEL_LEN, (), NUM_BLOCKS)
    return Engine(config, model, SleepingExecutor(step_seconds))
