"""The events of a simulated cluster in order of time: requests arrive, steps end, gateways hear of it a bit later."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from random import Random

from cluster.router.placement import Wish
from deploy.simulate.journal import Journal
from deploy.simulate.load import Arrival
from deploy.simulate.policies import Policy
from deploy.simulate.replica import SimulatedReplica
from replicas.config import EngineConfig
from replicas.messages import GenerateRequest, KvStored, LoadReport, StepOutput
from replicas.sampling.params import SamplingParams

REPORT_SECONDS = 0.02  # a replica reports its load after a step, at most so often


@dataclass(frozen=True, slots=True)
class Shape:
    """How big the cluster is. `lag` is how long news travel from a replica to a gateway, or from one gateway to
    another, in seconds."""

    replicas: int
    num_blocks: int
    engine: EngineConfig
    gateways: int = 1
    lag: float = 0.001


@dataclass(slots=True, eq=False)
class _Member:
    """A replica and what it has to tell: the requests it took in since its last report, and when that was. Of the
    ends that were planned for what it does, only the `latest` holds."""

    replica: SimulatedReplica
    taken: list[str] = field(default_factory=list)
    reported: float = float("-inf")
    owes_report: bool = False
    latest: int = 0


class Cluster:
    """Runs one load once. `_gateway_of` a request is the one that places it, and `_remote` are those requests that came
    to another."""

    def __init__(self, shape: Shape, new_policy: Callable[[Random], Policy], seed: int) -> None:
        self._lag = shape.lag
        self._random = Random(seed)
        names = [f"replica-{number}" for number in range(shape.replicas)]
        self._members = {name: _Member(SimulatedReplica(name, shape.engine, shape.num_blocks)) for name in names}
        self._gateways = [new_policy(Random(f"{seed} {number}")) for number in range(shape.gateways)]
        for gateway in self._gateways:
            for name in names:
                gateway.join(name)
        self._gateway_of: dict[str, Policy] = {}
        self._remote: set[str] = set()
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = count()

    def run(self, arrivals: Sequence[Arrival]) -> Journal:
        """Serve all of them to the end."""
        self._journal = Journal(arrivals, list(self._members))
        for number, arrival in enumerate(arrivals):
            self._at(arrival.time, partial(self._arrive, str(number), arrival))
        while self._events:
            now, _, act = heapq.heappop(self._events)
            act(now)
        return self._journal

    def _at(self, time: float, act: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), act))

    def _arrive(self, request_id: str, arrival: Arrival, now: float) -> None:
        gateway = self._random.choice(self._gateways)
        lead = self._gateways[0]
        if gateway.through_lead and gateway is not lead:
            self._remote.add(request_id)
            self._at(now + self._lag, partial(self._place, request_id, arrival, lead))
        else:
            self._place(request_id, arrival, gateway, now)

    def _place(self, request_id: str, arrival: Arrival, gateway: Policy, now: float) -> None:
        wish = Wish(request_id, arrival.block_keys, arrival.num_tokens, arrival.max_tokens, arrival.session)
        name = gateway.choose(wish, now)
        self._gateway_of[request_id] = gateway
        self._journal.place(request_id, name)
        if request_id in self._remote:  # the answer travels
            self._at(now + self._lag, partial(self._submit, request_id, arrival, self._members[name]))
        else:
            self._submit(request_id, arrival, self._members[name], now)

    def _submit(self, request_id: str, arrival: Arrival, member: _Member, now: float) -> None:
        member.taken.append(request_id)
        earlier_end = member.replica.add(_request(request_id, arrival), now)
        if earlier_end is not None:
            self._end_at(member, earlier_end)
        elif not member.replica.is_busy:
            self._at(now, partial(self._wake, member))

    def _wake(self, member: _Member, now: float) -> None:
        """After all that arrives at this moment."""
        if not member.replica.is_busy:
            self._begin(member, now)

    def _begin(self, member: _Member, now: float) -> None:
        if (end := member.replica.begin(now)) is not None:
            self._end_at(member, end)

    def _end_at(self, member: _Member, end: float) -> None:
        member.latest += 1
        self._at(end, partial(self._end, member, member.latest))

    def _end(self, member: _Member, number: int, now: float) -> None:
        if number != member.latest:
            return  # the run was cut short
        ended = member.replica.end()
        self._journal.steps(ended.step_seconds, ended.decodes)
        self._journal.output(ended.output, now)
        if ended.output.events or ended.output.kv_events:
            self._at(now + self._lag, partial(self._hear, member.replica.name, ended.output))
        if now >= member.reported + REPORT_SECONDS:
            self._report(member, now)
        elif not member.owes_report:
            member.owes_report = True
            self._at(member.reported + REPORT_SECONDS, partial(self._report_late, member))
        self._begin(member, now)

    def _report_late(self, member: _Member, now: float) -> None:
        """Unless a step is under way, whose end is a better moment."""
        if member.owes_report and not member.replica.in_step:
            self._report(member, now)

    def _report(self, member: _Member, now: float) -> None:
        load, taken = member.replica.load(), member.taken
        member.taken, member.reported, member.owes_report = [], now, False
        self._at(now + self._lag, partial(self._hear_load, member.replica.name, load, taken))

    def _hear(self, name: str, output: StepOutput, now: float) -> None:
        for gateway in self._gateways:
            for event in output.kv_events:
                tell = gateway.stored if isinstance(event, KvStored) else gateway.removed
                tell(name, event.block_keys)
        for token in output.events:
            if token.offset == 0:
                self._tell(token.request_id, self._gateway_of[token.request_id].started, now)
            if token.finish_reason is not None:
                self._tell(token.request_id, self._gateway_of.pop(token.request_id).ended, now)
                self._remote.discard(token.request_id)

    def _tell(self, request_id: str, told: Callable[[str], None], now: float) -> None:
        """Who has placed a request hears of it through the gateway that the request came to."""
        if request_id in self._remote:
            self._at(now + self._lag, lambda _: told(request_id))
        else:
            told(request_id)

    def _hear_load(self, name: str, load: LoadReport, taken: list[str], now: float) -> None:
        for gateway in self._gateways:
            gateway.observe(name, load, now, taken)


def _request(request_id: str, arrival: Arrival) -> GenerateRequest:
    """Its tokens name the request, so that no answer is taken for another's."""
    sampling = SamplingParams(max_tokens=arrival.max_tokens, temperature=0.0, ignore_eos=True)
    token_ids = (int(request_id) + 1,) * arrival.num_tokens
    return GenerateRequest(request_id, token_ids, sampling, block_keys=arrival.block_keys)
