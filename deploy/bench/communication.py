"""`mobula bench communication`: how many calls and bytes a step costs between ranks, against the least that would do.

First the arithmetic is held against what real ranks of a tiny model hand to `torch.distributed`; then it is applied to
the model that was asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from deploy.bench.counted_ranks import DTYPE, PROMPT, SEQUENCES, TINY, Counts, count_steps
from deploy.plan.communication import Step, Traffic, step_traffic
from deploy.plan.layout import Layout, layouts
from replicas.config import ModelConfig

COUNTED = (Layout(2, 1), Layout(1, 2), Layout(4, 1), Layout(2, 2))
NODE = 8
ITEMSIZE = 2


@dataclass(frozen=True, slots=True)
class Comparison:
    """One step of the tiny model: what was counted and what the arithmetic says, by kind."""

    layout: Layout
    step: str
    counted: Counts
    computed: Counts


@dataclass(frozen=True, slots=True)
class Cost:
    """A step's communication in one layout. `calls` are those that one after another make up a step."""

    layout: Layout
    calls: int
    wire_bytes: int
    minimum: int


@dataclass(frozen=True, slots=True)
class Result:
    """What the command tells: the proof, then the decode step of `model` with `batch` requests."""

    counted: list[Comparison]
    model: str
    batch: int
    greedy: list[Cost]
    sampled: list[Cost]


def compare(counted_layouts: Sequence[Layout] = COUNTED, greedy: bool = True) -> list[Comparison]:
    """Run real ranks and hold their counts beside the arithmetic."""
    steps = {
        "prefill": Step(SEQUENCES * PROMPT, SEQUENCES, greedy, DTYPE.itemsize),
        "decode": Step(SEQUENCES, SEQUENCES, greedy, DTYPE.itemsize),
    }
    return [
        Comparison(layout, name, counts, _by_kind(step_traffic(TINY, layout, steps[name])))
        for layout in counted_layouts
        for name, counts in count_steps(layout, greedy).items()
    ]


def costs(config: ModelConfig, batch: int, greedy: bool) -> list[Cost]:
    """A decode step of `batch` requests in every layout that fills a node or an even part of it."""
    step = Step(batch, batch, greedy, ITEMSIZE)
    parts = (layout for layout in layouts(config, NODE, NODE) if layout.gpus > 1 and NODE % layout.gpus == 0)
    return [_cost(layout, step_traffic(config, layout, step)) for layout in sorted(parts, key=lambda each: each.gpus)]


def measure(model: str, config: ModelConfig, batch: int) -> Result:
    return Result(compare(), model, batch, costs(config, batch, greedy=True), costs(config, batch, greedy=False))


def as_json(result: Result) -> dict[str, Any]:
    return asdict(result)


def lines(result: Result) -> Iterable[str]:
    """The report as Markdown."""
    yield f"Counted on real ranks over Gloo, a tiny model of {TINY.num_layers} layers, {SEQUENCES} greedy requests:"
    yield ""
    yield "| tensor × pipeline | step | call | calls, all ranks | bytes handed over | arithmetic |"
    yield "|---|---|---|---|---|---|"
    for row in result.counted:
        for kind, (calls, size) in row.counted.items():
            verdict = "equal" if row.computed.get(kind) == (calls, size) else f"says {row.computed.get(kind)}"
            yield f"| {_named(row.layout)} | {row.step} | {kind} | {calls} | {size:,} | {verdict} |"
    yield ""
    yield f"Computed for a decode step of {result.model} with {result.batch} requests, 16-bit, MB on all links:"
    yield ""
    yield "| tensor × pipeline | calls in a row | greedy | sampled | the least |"
    yield "|---|---|---|---|---|"
    for greedy, sampled in zip(result.greedy, result.sampled, strict=True):
        sizes = " | ".join(f"{size / 1e6:.2f}" for size in (greedy.wire_bytes, sampled.wire_bytes, greedy.minimum))
        yield f"| {_named(greedy.layout)} | {greedy.calls} | {sizes} |"


def _by_kind(traffic: Sequence[Traffic]) -> Counts:
    kinds = sorted({each.kind for each in traffic})
    return {
        kind: (
            sum(each.calls * each.callers for each in traffic if each.kind == kind),
            sum(each.handed_over for each in traffic if each.kind == kind),
        )
        for kind in kinds
    }


def _cost(layout: Layout, traffic: Sequence[Traffic]) -> Cost:
    return Cost(
        layout,
        sum(each.calls for each in traffic),
        sum(each.wire_bytes for each in traffic),
        sum(each.minimum for each in traffic),
    )


def _named(layout: Layout) -> str:
    return f"{layout.tensor} × {layout.pipeline}"
