"""Real rank processes that tests use for one engine after the other: starting them costs seconds, a tiny model nothing.

As a program it is one of the ranks: `python -m tests.support.rank_group`, with its spec on standard input.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from parallel.channel import Channel
from parallel.groups import MeetingPlace, RankGroup, joined
from parallel.watchdog import Pulse
from replicas.build import plan_capacity
from replicas.config import EngineConfig
from replicas.engine import Engine
from replicas.layers.attention import allocate_kv_layers
from replicas.loading.checkpoint import load_model, open_checkpoint
from replicas.loading.precision import resolve_precision
from replicas.ranks.executor import GroupExecutor
from replicas.ranks.follower import RankSpec, serve_plans
from replicas.ranks.leader import OVER, PLANS, PULSE, Lead, Rendezvous, lead
from replicas.ranks.links import StageLinks
from replicas.ranks.processes import decode_spec, encode_spec
from replicas.startup import build_runner
from tests.support.paged import PagedSequence, forward_batch

CPU = torch.device("cpu")
PROMPT = [3 + index * 7 % 120 for index in range(53)]
CHUNK = 20
BLOCK_SIZE = 4


@dataclass
class Ranks:
    """Rank 0's hold on the others."""

    spec: RankSpec
    leader: Lead

    def engine(self, folder: Path, config: EngineConfig) -> Engine:
        """An engine over the ranks, to be closed before anything else is asked of them."""
        mesh = self.leader.group.mesh
        config = replace(config, tensor_parallel=mesh.tensor, pipeline_parallel=mesh.pipeline)
        checkpoint = open_checkpoint(folder)
        served = plan_capacity(checkpoint, config, resolve_precision(config, checkpoint))
        spec = replace(self.spec, model_path=str(folder), config=config, num_blocks=served.num_blocks)
        self.leader.tell(b"serve" + encode_spec(spec))
        runner = build_runner(checkpoint, config, self.leader.group, served.num_blocks)
        self.leader.await_ready()
        return Engine(config, served, GroupExecutor(runner, self.leader, lambda: self.leader.tell(OVER)))

    def prompt_logits(self, folder: Path) -> torch.Tensor:
        """logits_TV of PROMPT, computed in chunks by all ranks."""
        self.leader.tell(b"logits" + encode_spec(replace(self.spec, model_path=str(folder))))
        return stage_logits(folder, self.leader.group)


def stage_logits(folder: Path, group: RankGroup) -> torch.Tensor:
    """One rank's part in computing PROMPT. Rank 0 returns logits_TV; what other ranks return means nothing."""
    config, mesh = open_checkpoint(folder).config, group.mesh
    model = load_model(open_checkpoint(folder), mesh, torch.float32, CPU)
    blocks = -(-len(PROMPT) // BLOCK_SIZE)
    kv_layers = allocate_kv_layers(config, mesh, blocks, BLOCK_SIZE, torch.float32, CPU)
    sequence = PagedSequence(list(range(blocks)), len(PROMPT))
    links = StageLinks.of(group, config.hidden_size, torch.float32)
    parts = []
    for start in range(0, len(PROMPT), CHUNK):
        token_ids = PROMPT[start : start + CHUNK]
        if links.hidden_in is not None:
            links.hidden_in.expect(torch.empty(len(token_ids), config.hidden_size))
        if links.results_in is not None:
            links.results_in.expect(torch.empty(len(token_ids), config.vocab_size))
        with torch.inference_mode():
            x = model(forward_batch([sequence], [token_ids], BLOCK_SIZE), kv_layers, links.receive_hidden())
            x = x if model.head is None else model.logits(x)
        if links.hidden_out is not None:
            links.hidden_out.send(x)
        if links.results_out is not None:
            links.results_out.send(x)
        parts.append(x if links.results_in is None else links.results_in.receive())
    links.flush()
    return torch.cat(parts)


@contextmanager
def start_ranks(tensor: int, pipeline: int) -> Iterator[Ranks]:
    """One process for each rank but the first, which is the caller's."""
    config = EngineConfig(tensor_parallel=tensor, pipeline_parallel=pipeline)
    rendezvous = Rendezvous("127.0.0.1")
    specs = [RankSpec(rank, rendezvous.address, "", config, 0, "cpu") for rank in range(1, config.num_ranks)]
    processes = [_start(spec) for spec in specs]

    def fail(reason: str, stacks: object) -> None:
        print(reason, stacks, file=sys.stderr)
        for process in processes:
            process.kill()  # whoever waits for it fails now

    try:
        with lead(rendezvous, config, CPU, lambda: None, fail) as leader:
            yield Ranks(specs[0], leader)
        for process in processes:
            assert process.wait(10) == 0
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _start(spec: RankSpec) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-m", "tests.support.rank_group"], stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(encode_spec(spec))
    process.stdin.close()
    return process


def _be_rank(spec: RankSpec) -> None:
    address, config = spec.address, spec.config
    with ExitStack() as stack:
        plans = Channel.connect(address.host, address.channel_port, spec.rank, PLANS)
        pulse = Pulse(Channel.connect(address.host, address.channel_port, spec.rank, PULSE))
        place = MeetingPlace.visit(address.host, address.store_port)
        sizes = config.tensor_parallel, config.pipeline_parallel
        group = stack.enter_context(joined(place, *sizes, spec.rank, CPU))
        while (message := plans.receive()) != OVER:
            if message.startswith(b"serve"):
                serve_plans(replace(decode_spec(message[5:]), rank=spec.rank), group, plans)
            else:
                stage_logits(Path(decode_spec(message[6:]).model_path), group)
        pulse.leave()


if __name__ == "__main__":
    torch.set_num_threads(1)
    _be_rank(decode_spec(sys.stdin.buffer.read()))
