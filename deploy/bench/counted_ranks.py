"""Real ranks of a tiny model, in processes that are joined by Gloo, which count what they hand to `torch.distributed`.

Nothing is replaced but the functions' names: the model, its layers, the runner and its stage links are the engine's.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from deploy.plan.layout import Layout
from deploy.plan.shapes import SHAPES
from parallel.groups import MeetingPlace, RankGroup, joined
from replicas.layers.attention import allocate_kv_layers
from replicas.models.registry import build_model
from replicas.plan import Admission, StepPlan, Work
from replicas.ranks.links import StageLinks
from replicas.runner import ModelRunner
from replicas.sampling.params import SamplingParams

TINY = replace(
    SHAPES["llama-3.1-8b"],
    vocab_size=1001,
    hidden_size=64,
    intermediate_size=128,
    num_layers=4,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    sliding_windows=(0,) * 4,
)
DTYPE, CPU, HOST = torch.float32, torch.device("cpu"), "127.0.0.1"
SEQUENCES = 8
PROMPT = 5
_BLOCK_SIZE = 16  # holds a whole sequence

# Where the tensor that a rank hands over stands among the arguments.
_FUNCTIONS = {
    "all_reduce": 0,
    "all_gather": 1,
    "all_gather_into_tensor": 1,
    "reduce_scatter_tensor": 1,
    "broadcast": 0,
    "send": 0,
    "isend": 0,
}
_KINDS = {"isend": "send", "all_gather_into_tensor": "all_gather"}

# kind -> calls and bytes, counted on every rank that hands something over, and added up
Counts = dict[str, tuple[int, int]]


def count_steps(layout: Layout, greedy: bool) -> dict[str, Counts]:
    """What the ranks of a layout hand over in a prefill step of SEQUENCES prompts, and in the decode step after it."""
    with tempfile.TemporaryDirectory() as folder:
        place = MeetingPlace.open(HOST)
        spawn(_be_rank, args=(layout, greedy, place.port, folder), nprocs=layout.gpus)
        ranks = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(layout.gpus)]
    return {step: _added(rank[step] for rank in ranks) for step in ("prefill", "decode")}


def _be_rank(rank: int, layout: Layout, greedy: bool, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    with joined(MeetingPlace.visit(HOST, port), layout.tensor, layout.pipeline, rank, CPU) as group:
        runner = _runner(group)
        counts = {}
        for name, plan in (("prefill", _prefill(greedy)), ("decode", _decode())):
            with _counted() as calls:
                runner.expect(plan)
                step = runner.start(plan)
                if rank == 0:
                    runner.finish(step)
            counts[name] = {kind: (len(sizes), sum(sizes)) for kind, sizes in calls.items()}
        runner.close()
    (Path(folder) / f"{rank}.json").write_text(json.dumps(counts))


def _runner(group: RankGroup) -> ModelRunner:
    model = build_model(TINY, group.mesh, DTYPE, CPU)
    for parameter in model.parameters():
        parameter.data.normal_(std=0.1)
    kv_layers = allocate_kv_layers(TINY, group.mesh, SEQUENCES, _BLOCK_SIZE, DTYPE, CPU)
    links = StageLinks.of(group, TINY.hidden_size, DTYPE) if group.mesh.pipeline > 1 else None
    return ModelRunner(model, kv_layers, _BLOCK_SIZE, SEQUENCES, (), links)


def _prefill(greedy: bool) -> StepPlan:
    sampling = SamplingParams(max_tokens=2, temperature=0.0 if greedy else 1.0)
    prompt = tuple(range(1, PROMPT + 1))
    admitted = tuple(Admission(slot, prompt, PROMPT, 0, (), sampling, PROMPT) for slot in range(SEQUENCES))
    return StepPlan((), admitted, tuple(Work(slot, PROMPT, (slot,)) for slot in range(SEQUENCES)))


def _decode() -> StepPlan:
    return StepPlan((), (), tuple(Work(slot, 1) for slot in range(SEQUENCES)), num_decodes=SEQUENCES)


@contextmanager
def _counted() -> Iterator[dict[str, list[int]]]:
    """Note the bytes of each call, by kind, until the end of the block."""
    calls: dict[str, list[int]] = {}
    originals = {name: getattr(dist, name) for name in _FUNCTIONS}

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            calls.setdefault(_KINDS.get(name, name), []).append(arguments[_FUNCTIONS[name]].nbytes)
            return function(*arguments, **options)

        return call

    for name, function in originals.items():
        setattr(dist, name, counting(name, function))
    try:
        yield calls
    finally:
        for name, function in originals.items():
            setattr(dist, name, function)


def _added(ranks: Iterator[dict[str, list[int]]]) -> Counts:
    calls: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for counts in ranks:
        for kind, (count, size) in counts.items():
            calls[kind] += count
            sizes[kind] += size
    return {kind: (calls[kind], sizes[kind]) for kind in sorted(calls)}
