"""The command `mobula plan`: from what a person asks to all that can be said about it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from deploy.errors import UserError
from deploy.plan.candidates import Candidate, Demand, candidates
from deploy.plan.devices import Gpu, gpu_named
from deploy.plan.source import model_shape
from deploy.plan.tables import ITEMSIZE, KernelTimes, read_tables
from deploy.units import parse_duration
from replicas.config import DTYPES, ModelConfig

ITEMSIZES = {"float32": 4, "bfloat16": 2, "float16": 2}
USUAL_CONTEXT = 4096
USUAL_PROMPT = 2048


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked, as it was typed."""

    model: str
    gpus: int
    gpu: str
    dtype: str
    batch: int
    context: int | None
    prompt: int | None
    itl: str | None
    ttft: str | None
    tables: Path


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer. `without_times` says why there are no times where `times` is None."""

    model: str
    config: ModelConfig
    gpu: Gpu
    gpus: int
    dtype: str
    demand: Demand
    times: KernelTimes | None
    without_times: str
    candidates: list[Candidate]


def make_plan(request: Request, quiet: bool = False) -> Plan:
    gpu = gpu_named(request.gpu)
    config = model_shape(request.model, quiet)
    if request.dtype not in DTYPES:
        raise UserError(f"--dtype is {request.dtype!r}, but must be one of {', '.join(DTYPES)}")
    dtype = config.dtype if request.dtype == "auto" else request.dtype
    demand = Demand(
        request.batch,
        _length("--context", request.context, USUAL_CONTEXT, config),
        _length("--prompt", request.prompt, USUAL_PROMPT, config),
        _objective("--itl", request.itl),
        _objective("--ttft", request.ttft),
    )
    times, without_times = _times(request.tables, gpu, dtype)
    found = candidates(config, gpu, request.gpus, ITEMSIZES[dtype], demand, times)
    return Plan(request.model, config, gpu, request.gpus, dtype, demand, times, without_times, found)


def _times(tables: Path, gpu: Gpu, dtype: str) -> tuple[KernelTimes | None, str]:
    """The tables, or why there are none: memory can be planned without."""
    if ITEMSIZES[dtype] != ITEMSIZE:
        return None, f"the tables hold 16-bit kernels, not {dtype}"
    try:
        return read_tables(tables, gpu), ""
    except FileNotFoundError as error:
        return None, f"there is no {error.filename}"


def _length(option: str, asked: int | None, usual: int, config: ModelConfig) -> int:
    if asked is None:
        return min(usual, config.max_positions)
    if asked > config.max_positions:
        raise UserError(f"{option} is {asked}, but the model was made for at most {config.max_positions} tokens")
    return asked


def _objective(option: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        raise UserError(f"{option} is {text!r}, but {error}") from error
