"""One replica in virtual time: which step or run of steps is under way, and what has come of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deploy.simulate.engine import SimulatedEngine
from deploy.simulate.timing import Seconds
from replicas.config import EngineConfig
from replicas.messages import GenerateRequest, LoadReport, StepOutput


@dataclass(frozen=True, slots=True)
class Ended:
    """A step and its output, or a run that put out nothing but more tokens: what each of its steps took, and how many
    requests got a further token in each."""

    output: StepOutput
    step_seconds: Seconds
    decodes: int


class SimulatedReplica:
    """A step is computed when it begins and told of when it ends; nobody may look in between."""

    def __init__(self, name: str, config: EngineConfig, num_blocks: int) -> None:
        self.name = name
        self._engine = SimulatedEngine(config, num_blocks)
        self._run: Seconds | None = None
        self._ended: Ended | None = None

    @property
    def is_busy(self) -> bool:
        return self._run is not None or self._ended is not None

    @property
    def in_step(self) -> bool:
        """A step is under way, and the engine is as it will be at its end."""
        return self._ended is not None

    def load(self) -> LoadReport:
        return self._engine.load()

    def add(self, request: GenerateRequest, now: float) -> float | None:
        """Queue a request. A run under way is cut: it ends with its step of that moment, which is returned."""
        clock = self._engine.clock
        ahead, clock.now = clock.now, now
        self._engine.add(request)
        clock.now = max(ahead, now)
        if self._run is None:
            return None
        clock.now = ahead
        self._run = self._run[: int(np.searchsorted(self._run, now)) + 1]
        return float(self._run[-1])

    def begin(self, now: float) -> float | None:
        """Start the next step or steady run; when it will end. None if there is nothing to do."""
        engine = self._engine
        if not engine.has_work:
            return None
        engine.clock.now = now
        if steps := engine.steady_steps():
            self._run = engine.run_ends(steps)
            return float(self._run[-1])
        output = engine.step()
        decodes = sum(event.offset > 0 for event in output.events)
        self._ended = Ended(output, np.array([engine.clock.now - now]), decodes)
        return engine.clock.now

    def end(self) -> Ended:
        """What the step or run has done that ends now."""
        if self._run is None:
            ended, self._ended = self._ended, None
            assert ended is not None, "nothing is under way"
            return ended
        ends, self._run = self._run, None
        started = self._engine.clock.now
        self._engine.skip(ends)
        return Ended(StepOutput(), np.diff(ends, prepend=started), self._engine.num_running)
