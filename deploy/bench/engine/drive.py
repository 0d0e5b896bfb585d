"""Runs planned requests on an engine in this process: those that are due enter before a step, as in a replica.

Latency counts from the scheduled arrival, so a request that had to wait for a step to end has waited.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from deploy.bench.serve.generator import Run
from deploy.bench.serve.outcome import Outcome, duration
from deploy.bench.serve.workload import Conversation, Turn
from deploy.errors import UserError
from replicas.engine import Engine
from replicas.messages import GenerateRequest, RequestSummary
from replicas.sampling.params import SamplingParams

Clock = Callable[[], float]
Sleep = Callable[[float], None]


@dataclass(slots=True)
class _UnderWay:
    scheduled: float
    sent: float
    events: array[float] = field(default_factory=lambda: array("d"))

    def outcome(self, summary: RequestSummary, ended: float) -> Outcome:
        return Outcome(
            scheduled=self.scheduled,
            sent=self.sent,
            ended=ended,
            events=self.events,
            prompt_tokens=summary.prompt_tokens,
            cached_tokens=summary.cached_tokens,
            output_tokens=len(summary.token_ids),
        )


def drive(
    engine: Engine, planned: Sequence[Conversation], clock: Clock = time.perf_counter, sleep: Sleep = time.sleep
) -> Run:
    """Serve each conversation's one turn, greedily and to its full length. Raises UserError if a request is too long
    for the engine."""
    zero, cpu = clock(), time.process_time()
    due = deque(sorted(planned, key=lambda conversation: conversation.start))
    under_way: dict[str, _UnderWay] = {}
    outcomes: list[Outcome] = []
    while due or engine.has_work:
        while due and zero + due[0].start <= clock():
            request = as_request(due[0], str(len(due)), engine.model.vocab_size)
            _add(engine, request)
            under_way[request.request_id] = _UnderWay(zero + due.popleft().start, clock())
        if not engine.has_work:
            sleep(max(0.0, zero + due[0].start - clock()))
            continue
        output = engine.step()
        now = clock()
        for event in output.events:
            under_way[event.request_id].events.append(now)
        outcomes += [under_way.pop(summary.request_id).outcome(summary, now) for summary in output.finished]
    return Run(outcomes, duration(outcomes), time.process_time() - cpu)


def as_request(conversation: Conversation, request_id: str, vocab_size: int) -> GenerateRequest:
    """The request as random token ids, equal ones for equal pieces."""
    (turn,) = conversation.turns
    sampling = SamplingParams(max_tokens=turn.max_tokens, temperature=0.0, ignore_eos=True)
    return GenerateRequest(request_id, _token_ids(turn, vocab_size), sampling)


def _token_ids(turn: Turn, vocab_size: int) -> tuple[int, ...]:
    drawn = [np.random.default_rng(piece.key).integers(0, vocab_size, piece.tokens) for piece in turn.prompt]
    return tuple(np.concatenate(drawn).tolist())


def _add(engine: Engine, request: GenerateRequest) -> None:
    try:
        engine.add(request)
    except ValueError as error:
        raise UserError(f"the engine cannot serve the load: {error}") from error
