"""The life of every rank but the first: join, load a part of the model, compute the plans of rank 0."""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from parallel.channel import Channel
from parallel.groups import MeetingPlace, RankGroup, joined
from parallel.watchdog import Pulse
from replicas.config import EngineConfig
from replicas.loading.checkpoint import open_checkpoint
from replicas.plan import StepPlan
from replicas.ranks.agreement import Mark, split_mark
from replicas.ranks.leader import OVER, PLANS, PULSE, READY, Address
from replicas.ranks.plan_codec import decode_plan
from replicas.runner import ModelRunner, Step
from replicas.startup import build_runner


@dataclass(frozen=True, slots=True)
class RankSpec:
    """One rank's task. `config` holds the sizes of the mesh; `num_blocks` is rank 0's count of KV blocks."""

    rank: int
    address: Address
    model_path: str
    config: EngineConfig
    num_blocks: int
    device: str


def run_rank(spec: RankSpec) -> None:
    """Be a rank other than 0, until rank 0 says that it is over. Raises ChannelClosedError if rank 0 is gone."""
    address, config, device = spec.address, spec.config, torch.device(spec.device)
    with ExitStack() as stack:
        plans = Channel.connect(address.host, address.channel_port, spec.rank, PLANS)
        stack.callback(plans.close)
        pulse = Pulse(Channel.connect(address.host, address.channel_port, spec.rank, PULSE))
        stack.callback(pulse.close)
        place = MeetingPlace.visit(address.host, address.store_port)
        sizes = config.tensor_parallel, config.pipeline_parallel
        group = stack.enter_context(joined(place, *sizes, spec.rank, device))
        serve_plans(spec, group, plans)
        pulse.leave()


def serve_plans(spec: RankSpec, group: RankGroup, plans: Channel) -> None:
    """Load this rank's part of the model, then follow rank 0's plans until it says that they are over."""
    try:
        checkpoint = open_checkpoint(Path(spec.model_path))
        runner = build_runner(checkpoint, spec.config, group, spec.num_blocks)
    except (ValueError, OSError) as error:
        plans.send(f"rank {spec.rank}: {error}".encode())
        plans.receive()  # stay, so that rank 0 hears the reason and not of a death
        return
    plans.send(READY)
    follow(runner, plans)
    runner.close()


def follow(runner: ModelRunner, plans: Channel) -> None:
    """Start steps in order. Plans that have arrived already are looked at ahead, so that what they expect from other
    stages travels while this one computes."""
    waiting: deque[tuple[Mark, StepPlan]] = deque()
    started: deque[Step] = deque()
    agreed = Mark()
    over = False
    while waiting or not over:
        while not over and (not waiting or plans.ready()):
            message = plans.receive()
            if message == OVER:
                over = True
                continue
            collected, plan = split_mark(message)
            waiting.append((collected, decode_plan(plan)))
            runner.expect(waiting[-1][1])
        if waiting:
            collected, step_plan = waiting.popleft()
            agreed = _agree(runner, started, agreed, collected)
            started.append(runner.start(step_plan))


def _agree(runner: ModelRunner, started: deque[Step], agreed: Mark, collected: Mark) -> Mark:
    """Leave the steps that rank 0 has collected behind. Raises RuntimeError if their results were others here."""
    while agreed.steps < collected.steps:
        step = started.popleft()
        if runner.knows_results:
            agreed = agreed.after(runner.finish(step).token_ids)
        else:
            agreed = replace(agreed, steps=agreed.steps + 1)
    if runner.knows_results and agreed != collected:
        raise RuntimeError(f"this rank has drawn other tokens than rank 0 in the first {agreed.steps} steps")
    return agreed
