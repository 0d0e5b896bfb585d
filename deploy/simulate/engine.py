"""An engine that can skip ahead: a run of decode steps in which only lengths change costs as much as one step."""

from __future__ import annotations

import numpy as np

from deploy.simulate.executor import SimulatedExecutor, VirtualClock
from deploy.simulate.timing import DecodeTiming, Seconds
from replicas.config import EngineConfig
from replicas.engine import Engine, ServedModel
from replicas.pace import WEIGHT_OF_NEWEST

VOCAB_SIZE = 2**31


class SimulatedEngine(Engine):
    """The engine itself, over a cache of `num_blocks` blocks and an executor that only tells how long a step takes.

    A run is steady while every sequence decodes, none waits, and none gets a block, fills one or ends: then a step
    only adds a token to each. `skip` leaves exactly what as many calls of `step` would.
    """

    def __init__(self, config: EngineConfig, num_blocks: int) -> None:
        self.clock = VirtualClock()
        capacity = num_blocks * config.block_size
        self._simulated = SimulatedExecutor(DecodeTiming(capacity), self.clock)
        model = ServedModel("simulated", VOCAB_SIZE, capacity, (), num_blocks)
        super().__init__(config, model, self._simulated, self.clock)

    @property
    def num_running(self) -> int:
        return len(self._scheduler.running)

    def steady_steps(self) -> int:
        """How many of the next steps belong to a steady run."""
        running = self._scheduler.running
        if not running or self._scheduler.num_waiting or self._simulated.num_rows != len(running):
            return 0
        size, steps = self.config.block_size, VOCAB_SIZE
        for sequence in running:
            if not sequence.is_decoding:
                return 0
            room = len(sequence.block_ids) * size - sequence.num_computed
            left = sequence.request.sampling.max_tokens - sequence.num_output
            steps = min(steps, room - 1, left - 1)
        return max(steps, 0)

    def run_ends(self, steps: int) -> Seconds:
        """When each of these steps of a steady run ends that starts now."""
        return np.cumsum(np.concatenate(([self.clock.now], self._simulated.run_seconds(steps))))[1:]

    def skip(self, ends: Seconds) -> None:
        """Take the steps of a steady run that end then, all at once."""
        steps, rows = len(ends), len(self._scheduler.running)
        for sequence in self._scheduler.running:
            sequence.token_ids += sequence.token_ids[-1:] * steps
            sequence.num_computed += steps
        self._simulated.skip(steps)
        self._steps += steps
        self._generated_tokens += steps * rows
        seconds = np.diff(ends, prepend=self.clock.now)
        pace = self._pace
        pace.step_seconds = _averaged(pace.step_seconds, seconds)
        pace.decode_step_seconds = _averaged(pace.decode_step_seconds, seconds)
        pace.decode_rate = _averaged(pace.decode_rate, rows / seconds)
        self.clock.now = self._last_collect = float(ends[-1])


def _averaged(average: float, values: Seconds) -> float:
    """The moving average of `Pace` after these values."""
    if average == 0.0:
        average, values = float(values[0]), values[1:]
    kept = (1 - WEIGHT_OF_NEWEST) ** np.arange(len(values), -1, -1)
    return float(kept[0] * average + WEIGHT_OF_NEWEST * (kept[1:] @ values))
