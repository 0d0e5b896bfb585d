"""Tunes a model: conducts the search over trials and keeps what each one showed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from deploy.bench.serve.measure import Summary
from deploy.errors import UserError
from deploy.tune.search import Champion, Result, Trial, best, conduct, held_rate, search
from deploy.tune.settings import DEFAULT, SPACE, Setting, setting
from deploy.tune.trials import Objectives

Run = Callable[[Setting, float], Summary]
Heard = Callable[["Tried"], None]


@dataclass(frozen=True, slots=True)
class Tried:
    """One run: `number` counts from 1."""

    number: int
    setting: Setting
    rate: float
    holds: bool
    summary: Summary


@dataclass(frozen=True, slots=True)
class Tuned:
    """The best setting with the highest rate that it held, the rate of the default one (None: it held none), and all
    runs in their order."""

    setting: Setting
    rate: float
    default_rate: float | None
    runs: Sequence[Tried]

    def curve(self, of: Setting) -> list[Tried]:
        """A setting's runs by their rate."""
        return sorted((tried for tried in self.runs if tried.setting == of), key=lambda tried: tried.rate)


def tune(run: Run, objectives: Objectives, first_rate: float, most: int, heard: Heard) -> Tuned:
    """At most so many runs. Raises UserError if no setting holds the objectives at any rate that was tried."""
    runs: list[Tried] = []

    def try_out(trial: Trial) -> bool:
        summary = run(setting(trial.point), trial.rate)
        holds = objectives.hold(summary)
        runs.append(Tried(len(runs) + 1, setting(trial.point), trial.rate, holds, summary))
        heard(runs[-1])
        return holds

    results = conduct(search(SPACE, DEFAULT, first_rate), try_out, most)
    champion = _winner(results)
    return Tuned(setting(champion.point), champion.rate, held_rate(results, DEFAULT), runs)


def _winner(results: Sequence[Result]) -> Champion:
    champion = best(results)
    if champion is None:
        lowest = min(result.trial.rate for result in results)
        raise UserError(
            f"no setting that was tried keeps the objectives, not even at {lowest:.3g} requests/s: this machine is too "
            f"slow for them with this load"
        )
    return champion
