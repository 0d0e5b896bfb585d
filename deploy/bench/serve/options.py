"""What the options of `mobula bench serve` add up to: a server, a load, objectives."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from deploy.bench.serve.lengths import LengthSource, Span, UniformLengths, read_lengths
from deploy.bench.serve.load import Load, Replay, Synthetic
from deploy.bench.serve.session import FIRST_RATE, Settings
from deploy.bench.serve.slo import Slo
from deploy.bench.serve.traces import read_trace
from deploy.bench.serve.workload import Shape
from deploy.errors import UserError
from deploy.units import parse_duration

DEFAULT_REQUESTS = 100
DEFAULT_SWEEP_SECONDS = 30.0  # of each rate


@dataclass(frozen=True, slots=True)
class Arrivals:
    """When requests come, as it was typed."""

    rate: float | None
    burstiness: float
    concurrency: int | None
    trace: Path | None
    speed: float
    limit: int | None
    requests: int | None
    duration: str | None
    seed: int
    sweep: bool

    @property
    def closed(self) -> int | None:
        """How many are under way at once, unless the loop is open."""
        if self.rate is not None or self.trace is not None or self.sweep:
            return self.concurrency
        return self.concurrency or 1


@dataclass(frozen=True, slots=True)
class Sizes:
    """What requests look like, as it was typed."""

    prompt: str
    output: str
    lengths: Path | None
    length_scale: float
    prefix: int
    prefixes: int
    turns: int
    pause: str


@dataclass(frozen=True, slots=True)
class Server:
    """Whom to ask, as it was typed."""

    url: str
    compare: str | None
    model: str | None
    chat: bool
    api_key_env: str
    timeout: str


def settings_of(
    server: Server, arrivals: Arrivals, load: Load, slo: Slo, warmup: int, text_seed: int | None
) -> Settings:
    """Raises UserError where options contradict one another."""
    if arrivals.sweep and server.compare is not None:
        raise UserError("--sweep is about one server, --compare about two: give one of the two")
    if arrivals.sweep and not slo:
        raise UserError("--sweep needs an objective that can break: give --ttft, --itl, --tpot or --e2e")
    return Settings(
        urls=(server.url,) if server.compare is None else (server.url, server.compare),
        model=server.model,
        chat=server.chat,
        api_key=os.environ.get(server.api_key_env),
        timeout=seconds_of("--timeout", server.timeout),
        load=load,
        concurrency=arrivals.closed,
        warmup=warmup,
        slo=slo,
        text_seed=secrets.randbits(32) if text_seed is None else text_seed,
    )


def load_of(arrivals: Arrivals, sizes: Sizes) -> Load:
    """Raises UserError where options contradict one another or a file cannot be read."""
    if arrivals.concurrency is not None and (arrivals.rate is not None or arrivals.sweep):
        raise UserError("--rate and --sweep are for an open loop, --concurrency for a closed one: give one of them")
    if arrivals.requests is not None and arrivals.duration is not None:
        raise UserError("--requests and --duration both say how many requests there are: give one of the two")
    try:
        return _synthetic(arrivals, sizes) if arrivals.trace is None else _replay(arrivals, arrivals.trace, sizes)
    except UserError:
        raise
    except (ValueError, OSError) as error:
        raise UserError(str(error)) from error


def slo_of(ttft: str | None, itl: str | None, tpot: str | None, e2e: str | None) -> Slo:
    limits = {"ttft": ttft, "itl": itl, "tpot": tpot, "e2e": e2e}
    return Slo(**{name: seconds_of(f"--{name}", text) for name, text in limits.items() if text is not None})


def seconds_of(option: str, text: str) -> float:
    """Raises UserError naming the option."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise UserError(f"{option} is {text!r}, but {error}") from error


def _synthetic(arrivals: Arrivals, sizes: Sizes) -> Synthetic:
    duration = None if arrivals.duration is None else seconds_of("--duration", arrivals.duration)
    rate, requests = arrivals.rate, arrivals.requests
    if arrivals.sweep:
        rate = rate or FIRST_RATE
        duration = DEFAULT_SWEEP_SECONDS if duration is None and requests is None else duration
    if duration is not None and rate is None:
        raise UserError("--duration needs a --rate: a closed loop ends after --requests")
    requests = DEFAULT_REQUESTS if duration is None and requests is None else requests
    shape = Shape(
        lengths=_lengths(sizes),
        turns=sizes.turns,
        pause=seconds_of("--pause", sizes.pause),
        prefix_tokens=sizes.prefix,
        prefixes=sizes.prefixes,
    )
    return Synthetic(shape, requests, duration, rate, arrivals.burstiness, (arrivals.seed,))


def _replay(arrivals: Arrivals, trace: Path, sizes: Sizes) -> Replay:
    if arrivals.duration is not None or arrivals.requests is not None:
        raise UserError("a trace has its own requests: cut it with --limit instead of --requests or --duration")
    return Replay(read_trace(trace, arrivals.limit), sizes.length_scale, arrivals.rate, arrivals.speed)


def _lengths(sizes: Sizes) -> LengthSource:
    if sizes.lengths is not None:
        return read_lengths(sizes.lengths, sizes.length_scale)
    return UniformLengths(Span.parse(sizes.prompt), Span.parse(sizes.output))
