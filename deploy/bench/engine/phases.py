"""What is measured: four phases, each of which shows one thing that an engine can be good at.

- offline: all requests are there from the beginning; how many tokens a second?
- prefill: prompts alone, with one token each; how fast are they read?
- single stream: one request at a time; how long until the first token, and from token to token?
- shared prefix: requests that begin alike, all there from the beginning; how long until all are answered?
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from deploy.bench.engine.drive import drive
from deploy.bench.engine.work import Form, Work, decode_work, prefill_work, run_work
from deploy.bench.serve.generator import Run
from deploy.bench.serve.lengths import Span, UniformLengths
from deploy.bench.serve.measure import spread
from deploy.bench.serve.outcome import Outcome, itls, ttfts
from deploy.bench.serve.workload import Conversation, Key, Shape, conversations
from replicas.config import ModelConfig
from replicas.engine import Engine

Better = Literal["more", "less"]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything, in requests and tokens."""

    prompt: Span
    output: Span
    requests: int = 64
    prefill_requests: int = 8
    prefill_prompt: int = 512
    streams: int = 4
    stream_prompt: int = 128
    stream_output: int = 128
    sharers: int = 32
    prefix: int = 1024
    own_prompt: int = 16
    own_output: int = 16


@dataclass(frozen=True, slots=True)
class Reading:
    """One number. `work` is what had to be done in `seconds`, where that can be told: the limits then say what share
    of them was reached."""

    phase: str
    name: str
    unit: str
    value: float
    better: Better = "less"
    work: Work | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Bench:
    """An engine, what it serves and in which form."""

    engine: Engine
    model: ModelConfig
    form: Form

    def run(self, planned: Sequence[Conversation]) -> tuple[Run, int]:
        """From an empty cache; with the number of steps that it took."""
        self.engine.reset()
        run = drive(self.engine, planned)
        return run, self.engine.load().steps_total

    def work(self, run: Run, steps: int) -> Work:
        return run_work(self.model, self.form, run.outcomes, steps)


def measure_round(bench: Bench, sizes: Sizes, seed: int) -> list[Reading]:
    """Every phase once. Equal seeds give equal requests."""
    phases: tuple[Callable[[Bench, Sizes, Key], Iterator[Reading]], ...] = (
        offline,
        prefill,
        single_stream,
        shared_prefix,
    )
    return [reading for number, phase in enumerate(phases) for reading in phase(bench, sizes, (seed, number))]


def offline(bench: Bench, sizes: Sizes, seed: Key) -> Iterator[Reading]:
    shape = Shape(UniformLengths(sizes.prompt, sizes.output))
    run, steps = bench.run(_planned(shape, sizes.requests, seed))
    output = sum(outcome.output_tokens for outcome in run.outcomes)
    prompt = sum(outcome.prompt_tokens for outcome in run.outcomes)
    work = bench.work(run, steps)
    gaps = spread(itls(run.outcomes))
    yield Reading("offline", "output", "tokens/s", output / run.seconds, "more", work, run.seconds)
    yield Reading("offline", "total", "tokens/s", (prompt + output) / run.seconds, "more")
    if gaps is not None:
        yield Reading("offline", "ITL p99", "ms", gaps.p99 * 1e3)


def prefill(bench: Bench, sizes: Sizes, seed: Key) -> Iterator[Reading]:
    shape = Shape(UniformLengths(Span(sizes.prefill_prompt, sizes.prefill_prompt), Span(1, 1)))
    run, steps = bench.run(_planned(shape, sizes.prefill_requests, seed))
    prompt = sum(outcome.prompt_tokens for outcome in run.outcomes)
    yield Reading("prefill", "prompts", "tokens/s", prompt / run.seconds, "more", bench.work(run, steps), run.seconds)


def single_stream(bench: Bench, sizes: Sizes, seed: Key) -> Iterator[Reading]:
    lengths = UniformLengths(_fixed(sizes.stream_prompt), _fixed(sizes.stream_output))
    outcomes: list[Outcome] = []
    for conversation in _planned(Shape(lengths), sizes.streams, seed):
        outcomes += bench.run([conversation])[0].outcomes
    ttft = statistics.median(ttfts(outcomes))
    work = prefill_work(bench.model, bench.form, sizes.stream_prompt)
    yield Reading("single stream", "TTFT", "ms", ttft * 1e3, work=work, seconds=ttft)
    if sizes.stream_output > 1:
        itl = statistics.median(itls(outcomes))
        work = decode_work(bench.model, bench.form, sizes.stream_prompt + sizes.stream_output // 2)
        yield Reading("single stream", "ITL", "ms", itl * 1e3, work=work, seconds=itl)


def shared_prefix(bench: Bench, sizes: Sizes, seed: Key) -> Iterator[Reading]:
    lengths = UniformLengths(_fixed(sizes.own_prompt), _fixed(sizes.own_output))
    run, steps = bench.run(_planned(Shape(lengths, prefix_tokens=sizes.prefix), sizes.sharers, seed))
    prompt = sum(outcome.prompt_tokens for outcome in run.outcomes)
    cached = sum(outcome.cached_tokens for outcome in run.outcomes)
    yield Reading("shared prefix", "all", "ms", run.seconds * 1e3, work=bench.work(run, steps), seconds=run.seconds)
    yield Reading("shared prefix", "reused", "%", 100 * cached / prompt, "more")


def medians(rounds: Sequence[Sequence[Reading]]) -> list[Reading]:
    """Of each reading, the one with the median value (of an even number, the lower of the two in the middle)."""
    columns = (sorted(same, key=lambda reading: reading.value) for same in zip(*rounds, strict=True))
    return [same[(len(same) - 1) // 2] for same in columns]


def _planned(shape: Shape, count: int, seed: Key) -> list[Conversation]:
    return conversations(shape, count, np.random.default_rng(seed), seed)


def _fixed(tokens: int) -> Span:
    return Span(tokens, tokens)
