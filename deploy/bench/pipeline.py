"""`python -m deploy.bench.pipeline`: how busy pipeline stages are with and without batches in flight, from timestamps.

Engine, scheduler, runner, links and processes are the real ones. Only the model sleeps instead of computing, a stage
its share of the time: stages that compute at once on a few shared cores would slow each other down.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import torch
from torch.multiprocessing.spawn import spawn

from deploy.plan.shapes import SHAPES
from parallel.channel import Channel
from parallel.groups import MeetingPlace, RankGroup, joined
from parallel.layers import Layer, Placement, VocabParallelEmbedding
from parallel.mesh import Mesh
from parallel.watchdog import Pulse
from replicas.batch import ForwardBatch, KvLayer
from replicas.config import EngineConfig
from replicas.engine import Engine, ServedModel
from replicas.messages import GenerateRequest
from replicas.ranks.executor import GroupExecutor
from replicas.ranks.follower import follow
from replicas.ranks.leader import OVER, PLANS, PULSE, Address, Lead, Rendezvous, lead
from replicas.ranks.links import StageLinks
from replicas.runner import ModelRunner
from replicas.sampling.params import SamplingParams

CPU, HOST = torch.device("cpu"), "127.0.0.1"
MODEL = replace(next(iter(SHAPES.values())), vocab_size=64, hidden_size=8)
REQUESTS, BLOCK_SIZE, BLOCKS = 8, 16, 256

Span = tuple[float, float]


class SleepingStage(Layer):
    """Stands in for a stage of a model; `spans` holds when it was busy, by the clock that all processes share."""

    def __init__(self, mesh: Mesh, model_seconds: float) -> None:
        super().__init__()
        self.config = MODEL
        self.head: VocabParallelEmbedding | None = None
        if mesh.is_last_stage:
            self.head = VocabParallelEmbedding("head", MODEL.vocab_size, MODEL.hidden_size, _placement())
        self.spans: list[Span] = []
        self._seconds = model_seconds / mesh.pipeline

    def forward(
        self, batch: ForwardBatch, kv_layers: Sequence[KvLayer], hidden_TH: torch.Tensor | None
    ) -> torch.Tensor:
        started = time.monotonic()
        time.sleep(self._seconds)
        self.spans.append((started, time.monotonic()))
        return torch.zeros(len(batch.token_ids_T), MODEL.hidden_size)


@dataclass(frozen=True, slots=True)
class Run:
    """When each stage was busy, step by step."""

    stages: list[list[Span]]

    @property
    def steps_per_second(self) -> float:
        ends = [end for _, end in self.stages[-1]]
        return (len(ends) - 1) / (ends[-1] - ends[0])

    @property
    def bubble(self) -> float:
        """The share of the time in which a stage was idle, over all stages."""
        elapsed = max(spans[-1][1] for spans in self.stages) - min(spans[0][0] for spans in self.stages)
        busy = sum(end - start for spans in self.stages for start, end in spans)
        return 1 - busy / (elapsed * len(self.stages))


def run_pipeline(stages: int, depth: int, model_seconds: float, tokens: int) -> Run:
    """Generate `tokens` tokens for some requests over stages in processes of their own, `depth` batches in flight."""
    config = EngineConfig(block_size=BLOCK_SIZE, max_running=REQUESTS, pipeline_parallel=stages, prefix_caching=False)
    rendezvous = Rendezvous(HOST)
    processes = spawn(_be_stage, (stages, rendezvous.address, model_seconds), nprocs=stages - 1, join=False)
    with lead(rendezvous, config, CPU, lambda: None, lambda reason, stacks: None) as leader:
        model = SleepingStage(leader.group.mesh, model_seconds)
        executor = GroupExecutor(_runner(model, leader.group), leader, lambda: leader.tell(OVER))
        executor.depth = depth
        _generate(Engine(config, ServedModel("sleeping", MODEL.vocab_size, 1024, (), BLOCKS), executor), tokens)
        spans = [model.spans, *_spans_of(leader)]
    processes.join()
    return Run(spans)


def _generate(engine: Engine, tokens: int) -> None:
    sampling = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    for index in range(REQUESTS):
        engine.add(GenerateRequest(str(index), (1,), sampling))
    while engine.has_work:
        engine.step()
    engine.close()


def _spans_of(leader: Lead) -> list[list[Span]]:
    return [[tuple(span) for span in json.loads(channel.receive())] for channel in leader.plans.values()]


def _be_stage(index: int, stages: int, address: Address, model_seconds: float) -> None:
    rank = index + 1
    with ExitStack() as stack:
        plans = Channel.connect(address.host, address.channel_port, rank, PLANS)
        pulse = Pulse(Channel.connect(address.host, address.channel_port, rank, PULSE))
        place = MeetingPlace.visit(address.host, address.store_port)
        group = stack.enter_context(joined(place, 1, stages, rank, CPU))
        model = SleepingStage(group.mesh, model_seconds)
        runner = _runner(model, group)
        follow(runner, plans)
        runner.close()
        plans.send(json.dumps(model.spans).encode())
        pulse.leave()


def _runner(model: SleepingStage, group: RankGroup) -> ModelRunner:
    empty = torch.empty(1, BLOCK_SIZE, 1, 1)
    links = StageLinks.of(group, MODEL.hidden_size, torch.float32) if group.mesh.pipeline > 1 else None
    return ModelRunner(model, [KvLayer(empty, empty)], BLOCK_SIZE, REQUESTS, (), links)  # type: ignore[arg-type]


def _placement() -> Placement:
    return Placement(Mesh(), torch.float32, CPU)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--model-ms", type=float, default=20.0, help="time of a step through all layers")
    parser.add_argument("--tokens", type=int, default=50)
    options = parser.parse_args()
    seconds = options.model_ms / 1000
    one = run_pipeline(1, 1, seconds, options.tokens)
    print(f"1 stage: {one.steps_per_second:.1f} steps/s, bubble {one.bubble:.0%}")
    for depth in (1, options.stages):
        run = run_pipeline(options.stages, depth, seconds, options.tokens)
        print(
            f"{options.stages} stages, {depth} in flight: {run.steps_per_second:.1f} steps/s, "
            f"{run.steps_per_second / one.steps_per_second:.2f} x one stage's rate, bubble {run.bubble:.0%}"
        )


if __name__ == "__main__":
    main()
