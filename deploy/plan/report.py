"""What `mobula plan` tells: one table, and one sentence that recommends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from deploy.plan.arithmetic import attention_flops, decode_bytes, linear_flops, model_parameters, prefill_pairs
from deploy.plan.candidates import WORTH_IT, Candidate, Demand, recommended
from deploy.plan.plan import ITEMSIZES, Plan
from replicas.models.layout import tensor_sizes

_COLUMNS = (
    "tensor ×\npipeline",
    "replicas",
    "weights\nGiB",
    "KV left\nGiB",
    "KV\ntokens",
    "requests\neach",
    "ITL\nms",
    "TTFT\nms",
    "tokens/s\nin all",
)


def print_plan(plan: Plan) -> None:
    console = Console(highlight=False)
    console.print(heading(plan))
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    for column in _COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for candidate in plan.candidates:
        table.add_row(*_cells(candidate), style=None if candidate.keeps(plan.demand) else "dim")
    console.print(table)
    for line in (*notes(plan), recommendation(plan)):
        console.print(line)


def as_json(plan: Plan) -> dict[str, Any]:
    chosen = recommended(plan.candidates, plan.demand)
    return {
        "model": plan.model,
        "parameters": model_parameters(plan.config),
        "gpu": plan.gpu.name,
        "gpus": plan.gpus,
        "dtype": plan.dtype,
        "demand": asdict(plan.demand),
        "undivided": _undivided(plan),
        "layouts": [{**asdict(each), "holds": each.holds} for each in plan.candidates],
        "recommended": asdict(chosen.layout) if chosen else None,
        "recommendation": recommendation(plan),
    }


def _undivided(plan: Plan) -> dict[str, int]:
    """What a decode step of all requests, and a prompt, would cost one GPU that held the whole model."""
    config, demand = plan.config, plan.demand
    batch, context, prompt = demand.batch, demand.context, demand.prompt
    pairs = sum(prefill_pairs(prompt, window) for window in config.sliding_windows)
    seen = sum(min(context, window or context) for window in config.sliding_windows)
    return {
        "decode_flops": linear_flops(config, 1, batch, batch) + attention_flops(config, 1, batch * seen),
        "decode_bytes": decode_bytes(config, 1, batch, context, ITEMSIZES[plan.dtype]),
        "prefill_flops": linear_flops(config, 1, prompt, 1) + attention_flops(config, 1, pairs),
    }


def heading(plan: Plan) -> str:
    demand = plan.demand
    return (
        f"{plan.model}: {model_parameters(plan.config) / 1e9:.2f} billion parameters in {plan.dtype}, on {plan.gpus} × "
        f"{plan.gpu.title}; {demand.batch} requests of {demand.context} tokens in all, prompts of {demand.prompt}."
    )


def notes(plan: Plan) -> Iterable[str]:
    yield f"Tensor sizes that divide the model: {', '.join(map(str, tensor_sizes(plan.config)))}."
    yield "Bytes are of the fullest GPU. Replicas share the requests; TTFT is an idle replica's."
    if plan.times is None:
        yield f"Times are not predicted: {plan.without_times}."
        return
    yield (
        "Times are sums of other people's measurements of other engines' kernels and messages (AIConfigurator on H200, "
        "Vidur on H100), not of Mobula. The host's work and sampling are left out, so they lean low."
    )


def recommendation(plan: Plan) -> str:
    demand, found = plan.demand, plan.candidates
    roomiest = max(found, key=lambda candidate: candidate.kv_bytes)
    if all(candidate.requests == 0 for candidate in found):
        return (
            f"Nothing fits: {roomiest.layout} comes nearest, with {_gib(roomiest.kv_bytes)} GiB a GPU for the KV "
            f"cache, less than one request of {demand.context} tokens needs."
        )
    holding = [candidate for candidate in found if candidate.holds]
    if not holding:
        fullest = max(found, key=lambda candidate: candidate.requests * candidate.replicas)
        return (
            f"No layout holds {demand.batch} requests of {demand.context} tokens; {fullest.layout} holds most, "
            f"{fullest.requests * fullest.replicas}."
        )
    chosen = recommended(found, demand)
    return _no_objective_kept(plan, holding) if chosen is None else _why(plan, chosen, holding)


def _no_objective_kept(plan: Plan, holding: Sequence[Candidate]) -> str:
    if plan.times is None:
        return "Whether the objectives can be kept is not known without times."
    fastest = min(holding, key=lambda candidate: candidate.itl or 0.0)
    soonest = min(holding, key=lambda candidate: candidate.ttft or 0.0)
    return (
        f"No layout keeps {_objectives(plan.demand)}: the lowest ITL is {_ms(fastest.itl)} ms with {fastest.layout}, "
        f"the lowest TTFT {_ms(soonest.ttft)} ms with {soonest.layout}."
    )


def _why(plan: Plan, chosen: Candidate, holding: Sequence[Candidate]) -> str:
    wanted = _objectives(plan.demand)
    able = f"holds the requests and keeps {wanted}" if wanted else "holds the requests"
    replicas = f"{chosen.replicas} replica{'s' if chosen.replicas > 1 else ''}"
    said = f"Recommended: {chosen.layout}, {replicas} on {plan.gpus} GPUs: the smallest layout that {able}"
    if plan.times is None:
        return f"{said}."
    said += f" and that no other is predicted to beat by {WORTH_IT:.0%} in throughput."
    fastest = min(holding, key=lambda candidate: candidate.itl or 0.0)
    if fastest is chosen:
        return f"{said} None has a lower ITL."
    return (
        f"{said} The lowest ITL has {fastest.layout}: {_ms(fastest.itl)} instead of {_ms(chosen.itl)} ms, and "
        f"{fastest.tokens_per_second or 0.0:,.0f} instead of {chosen.tokens_per_second or 0.0:,.0f} tokens/s."
    )


def _objectives(demand: Demand) -> str:
    limits = (("ITL", demand.itl), ("TTFT", demand.ttft))
    return " and ".join(f"{name} within {_ms(limit)} ms" for name, limit in limits if limit is not None)


def _cells(candidate: Candidate) -> Iterable[str]:
    layout, rate = candidate.layout, candidate.tokens_per_second
    yield f"{layout.tensor} × {layout.pipeline}"
    yield str(candidate.replicas)
    yield _gib(candidate.weight_bytes)
    yield _gib(candidate.kv_bytes)
    yield f"{candidate.kv_tokens:,}"
    yield str(candidate.requests)
    yield _ms(candidate.itl)
    yield _ms(candidate.ttft)
    yield "-" if rate is None else f"{rate:,.0f}"


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f}"


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1e3:.1f}" if seconds < 0.1 else f"{seconds * 1e3:,.0f}"
