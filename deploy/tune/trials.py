"""Runs a setting at a request rate: an engine in this process, open-loop arrivals, the same ones for each setting."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from deploy.bench.engine.drive import drive
from deploy.bench.serve.load import Synthetic
from deploy.bench.serve.measure import Summary, summarize
from deploy.bench.serve.slo import Slo
from deploy.bench.serve.workload import Key
from deploy.errors import UserError
from deploy.tune.settings import Setting
from replicas.build import build_engine
from replicas.config import EngineConfig
from replicas.engine import Engine

WARM_UP_REQUESTS = 4


@dataclass(frozen=True, slots=True)
class Objectives:
    """Seconds that 99 of 100 first tokens, and 99 of 100 gaps between tokens, stay under."""

    ttft_p99: float
    itl_p99: float

    def hold(self, summary: Summary) -> bool:
        late = summary.ttft is None or summary.ttft.p99 > self.ttft_p99
        return not late and (summary.itl is None or summary.itl.p99 <= self.itl_p99)

    @property
    def each(self) -> Slo:
        """The same for one request, to count goodput with."""
        return Slo(ttft=self.ttft_p99, itl=self.itl_p99)


class Trials:
    """Keeps the engine of the last setting, since a search often asks for the same one again."""

    def __init__(self, path: Path, config: EngineConfig, load: Synthetic, objectives: Objectives) -> None:
        self._path = path
        self._config = config
        self._load = load
        self._objectives = objectives
        self._engine: Engine | None = None
        self._setting: Setting | None = None
        self._runs = 0

    def run(self, setting: Setting, rate: float) -> Summary:
        """Raises UserError if the model cannot be run or the load does not fit."""
        engine = self._ready(setting)
        run = drive(engine, self._load.at_rate(rate).planned(self._next_text()))
        return summarize(run, self._objectives.each)

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
        self._engine = self._setting = None

    def _ready(self, setting: Setting) -> Engine:
        if self._engine is not None and self._setting == setting:
            return self._engine
        self.close()  # first, so that memory never holds two
        try:
            self._engine = build_engine(str(self._path), setting.applied(self._config, self._objectives.itl_p99))
        except ValueError as error:
            raise UserError(f"the model cannot be run: {error}") from error
        self._setting = setting
        warm_up = replace(self._load, rate=None, requests=WARM_UP_REQUESTS, duration=None).planned(self._next_text())
        drive(self._engine, warm_up)  # it cuts prompts by its own pace, which it must have seen first
        return self._engine

    def _next_text(self) -> Key:
        """New words each time: none is in the prefix cache."""
        self._runs += 1
        return (self._runs,)


@contextmanager
def computing_with(threads: int) -> Iterator[None]:
    """0: with every core that the process may use."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or len(os.sched_getaffinity(0)))
    try:
        yield
    finally:
        torch.set_num_threads(before)
