"""The three ways to measure: one load, a sweep over rates, two servers in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack
from dataclasses import dataclass

import numpy as np

from deploy.bench.serve.compare import FEWEST_PAIRS, Ratio, compare, order
from deploy.bench.serve.generator import Done, Run, closed_loop, open_loop
from deploy.bench.serve.load import Load
from deploy.bench.serve.measure import Summary, summarize
from deploy.bench.serve.slo import Slo, attainment
from deploy.bench.serve.sweep import Trial, next_rate
from deploy.bench.serve.target import Target, opened
from deploy.bench.serve.workload import Conversation, Key
from deploy.errors import UserError

WARM_UP_CONCURRENCY = 4
FIRST_RATE = 1.0  # of a sweep, unless the load has one

Bars = Callable[[str, int], AbstractContextManager[Done]]  # a title, how many requests; the result takes each outcome


@dataclass(frozen=True, slots=True)
class Settings:
    """What holds for a whole measurement. With `concurrency` the loop is closed. `text_seed` decides the words, so
    that a second measurement does not find the first one's prompts in the server's prefix cache."""

    urls: tuple[str, ...]
    model: str | None
    chat: bool
    api_key: str | None
    timeout: float
    load: Load
    concurrency: int | None
    warmup: int
    slo: Slo
    text_seed: int


@dataclass(frozen=True, slots=True)
class Measured:
    """One load on one server."""

    target: Target
    run: Run
    summary: Summary


@dataclass(frozen=True, slots=True)
class Step:
    """One rate of a sweep."""

    trial: Trial
    measured: Measured


@dataclass(frozen=True, slots=True)
class Compared:
    """All rounds of each server as one, and the ratios between the two."""

    first: Measured
    second: Measured
    pairs: int
    ratios: list[Ratio]


async def measure_load(settings: Settings, bars: Bars) -> Measured:
    async with AsyncExitStack() as stack:
        sender = Sender(settings, bars)
        (target,) = await _ready(stack, settings, sender)
        return _measured(target, [await sender.send(target, settings.load, "measuring")], settings.slo)


async def measure_sweep(settings: Settings, wanted: float, bars: Bars) -> list[Step]:
    """Search for the highest rate at which the share `wanted` of all requests keeps the objectives."""
    steps: list[Step] = []
    async with AsyncExitStack() as stack:
        sender = Sender(settings, bars)
        (target,) = await _ready(stack, settings, sender)
        while (rate := next_rate([step.trial for step in steps], settings.load.rate or FIRST_RATE)) is not None:
            run = await sender.send(target, settings.load.at_rate(rate), f"{rate:.3g} requests/s")
            trial = Trial(rate, attainment(run.outcomes, settings.slo) >= wanted)
            steps.append(Step(trial, _measured(target, [run], settings.slo)))
    return sorted(steps, key=lambda step: step.trial.rate)


async def measure_both(settings: Settings, pairs: int, bars: Bars) -> Compared:
    """Send each part of the load to both servers, in turns."""
    parts = settings.load.parts(pairs)
    if len(parts) < FEWEST_PAIRS:
        raise UserError(f"a comparison needs at least {FEWEST_PAIRS} requests")
    runs: tuple[list[Run], list[Run]] = ([], [])
    async with AsyncExitStack() as stack:
        sender = Sender(settings, bars)
        targets = await _ready(stack, settings, sender)
        for index, side in enumerate(order(len(parts))):
            title = f"round {index // 2 + 1} of {len(parts)}, {'AB'[side]}"
            runs[side].append(await sender.send(targets[side], parts[index // 2], title))
    first, second = ([run.outcomes for run in side] for side in runs)
    ratios = compare(first, second, settings.slo, np.random.default_rng(0))
    measured = [_measured(target, side, settings.slo) for target, side in zip(targets, runs, strict=True)]
    return Compared(measured[0], measured[1], len(parts), ratios)


class Sender:
    """Sends loads, each in words that were not used before."""

    def __init__(self, settings: Settings, bars: Bars) -> None:
        self._settings = settings
        self._bars = bars
        self._sent = 0

    async def send(self, target: Target, load: Load, title: str) -> Run:
        planned = load.planned(self._next_text())
        with self._bars(title, _requests(planned)) as done:
            if self._settings.concurrency is not None:
                return await closed_loop(target, planned, self._settings.concurrency, done)
            return await open_loop(target, planned, done)

    async def warm_up(self, target: Target) -> None:
        planned = self._settings.load.planned(self._next_text())[: self._settings.warmup]
        if not planned:
            return
        with self._bars("warming up", _requests(planned)) as done:
            await closed_loop(target, planned, self._settings.concurrency or WARM_UP_CONCURRENCY, done)

    def _next_text(self) -> Key:
        self._sent += 1
        return self._settings.text_seed, self._sent


async def _ready(stack: AsyncExitStack, settings: Settings, sender: Sender) -> list[Target]:
    """Targets that have been asked what they understand, and warmed up."""
    targets = []
    for url in settings.urls:
        target = opened(url, settings.model, settings.chat, settings.api_key, settings.timeout)
        targets.append(await stack.enter_async_context(target))
        await sender.warm_up(targets[-1])
    return targets


def _measured(target: Target, runs: Sequence[Run], slo: Slo) -> Measured:
    """Several runs as one."""
    outcomes = [outcome for run in runs for outcome in run.outcomes]
    run = Run(outcomes, sum(run.seconds for run in runs), sum(run.cpu_seconds for run in runs))
    return Measured(target, run, summarize(run, slo))


def _requests(planned: Sequence[Conversation]) -> int:
    return sum(len(conversation.turns) for conversation in planned)
