"""Measures an engine in rounds, the machine's limits before and after, and the same engine without each mechanism."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from deploy.bench.engine.ablations import applicable
from deploy.bench.engine.limits import Limits, best_of, measure_limits
from deploy.bench.engine.phases import Bench, Reading, Sizes, measure_round, medians
from deploy.bench.engine.work import Form, form_of
from deploy.errors import UserError
from replicas.build import build_engine
from replicas.config import EngineConfig, ModelConfig
from replicas.loading.checkpoint import open_checkpoint

Told = Callable[[str], None]  # hears what is being measured now


@dataclass(frozen=True, slots=True)
class Asked:
    """`rounds` is how often everything is measured; the medians count."""

    path: Path
    config: EngineConfig
    sizes: Sizes
    rounds: int
    seed: int
    ablate: bool


@dataclass(frozen=True, slots=True)
class Ablated:
    """What was measured without one mechanism."""

    name: str
    readings: list[Reading]


@dataclass(frozen=True, slots=True)
class Measured:
    """With ablations, the last of them is none: the whole engine once more shows how much the machine itself varies."""

    model: ModelConfig
    form: Form
    threads: int
    limits: Limits
    readings: list[Reading]
    ablated: list[Ablated]


def measure(asked: Asked, told: Told) -> Measured:
    """Raises UserError if the model cannot be run or the load does not fit."""
    threads = asked.config.threads or len(os.sched_getaffinity(0))
    config = replace(asked.config, threads=threads)
    with opened(asked.path, config) as bench:
        model, form, own = bench.model, bench.form, bench.engine.config
        told("the machine's limits")
        limits = measure_limits(model, form)
        readings = _rounds(bench, asked, told, "everything on")
    ablated = []
    if asked.ablate:
        for name, without in applicable(config, own):
            with opened(asked.path, without) as bench:
                ablated.append(Ablated(name, _rounds(bench, asked, told, f"without {name}")))
        with opened(asked.path, config) as bench:
            ablated.append(Ablated("nothing", _rounds(bench, asked, told, "everything on, again")))
    told("the machine's limits, again")
    limits = best_of(limits, measure_limits(model, form))
    return Measured(model, form, threads, limits, readings, ablated)


@contextmanager
def opened(path: Path, config: EngineConfig) -> Iterator[Bench]:
    """An engine on one rank in this process, which computes with `config.threads` threads meanwhile."""
    if config.num_ranks > 1:
        raise UserError("an engine is measured on one rank: leave out `parallel`")
    before = torch.get_num_threads()
    torch.set_num_threads(config.threads)
    try:
        engine = build_engine(str(path), config)
        yield Bench(engine, open_checkpoint(path).config, form_of(engine.config))
        engine.close()
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"the model cannot be run: {error}") from error
    finally:
        torch.set_num_threads(before)


def _rounds(bench: Bench, asked: Asked, told: Told, title: str) -> list[Reading]:
    rounds = []
    for number in range(asked.rounds):
        told(f"{title}, round {number + 1} of {asked.rounds}")
        rounds.append(measure_round(bench, asked.sizes, asked.seed))
    return medians(rounds)
