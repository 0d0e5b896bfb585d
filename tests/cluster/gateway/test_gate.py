"""The gate over replicas that take a known time, under a virtual clock: who is let in, when, and who is refused."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from math import inf
from random import Random

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cluster.gateway.errors import ApiError
from cluster.gateway.gate import Gate, Ticket
from cluster.metrics import GatewayMetrics
from tests.support.virtual_loop import run_virtually

OBJECTIVE = 1.0


class Replicas:
    """`slots` requests run at once; each has its first token after `ttft`, and leaves after `service`."""

    def __init__(self, slots: int, ttft: float = 0.05, service: float = 0.5) -> None:
        self.slots, self.ttft, self.service = slots, ttft, service
        self.running = 0
        self.most = 0

    def has_room(self) -> bool:
        return self.running < self.slots

    def best_ttft(self, num_tokens: int) -> float:
        return self.ttft if self.slots else inf

    async def run(self, gate: Gate) -> float:
        """Returns when the first token came."""
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(self.ttft)
            first = asyncio.get_running_loop().time()
            await asyncio.sleep(self.service - self.ttft)
            return first
        finally:
            self.running -= 1
            gate.notify()


@dataclass
class World:
    """Everything of one test, inside the virtual loop."""

    replicas: Replicas
    gate: Gate
    metrics: GatewayMetrics
    served: list[tuple[str, float]] = field(default_factory=list)  # (key, seconds to first token)
    refused: list[tuple[str, float, int]] = field(default_factory=list)  # (key, seconds to the refusal, Retry-After)

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def request(self, key="a", priority=0, tokens=90, max_tokens=10, patient=False):
        ticket = Ticket(key, priority, tokens, max_tokens, self.now, patient)
        try:
            await self.gate.enter(ticket)
        except ApiError as error:
            self.refused.append((key, self.now - ticket.arrival, int(error.headers["Retry-After"])))
            return
        first = await self.replicas.run(self.gate)
        self.gate.ended(ticket, max_tokens)
        self.served.append((key, first - ticket.arrival))

    async def offer(self, rate, seconds, rng, **options):
        """Arrivals at random, which do not wait for answers."""
        tasks, end = [], self.now + seconds
        while self.now < end:
            await asyncio.sleep(rng.expovariate(rate))
            tasks.append(asyncio.create_task(self.request(**options)))
        await asyncio.gather(*tasks)

    def sample(self, name, **labels):
        families = text_string_to_metric_families(self.metrics.render().decode())
        samples = (sample for family in families for sample in family.samples)
        return sum(s.value for s in samples if s.name == f"mobula_{name}" and labels.items() <= s.labels.items())


def world(slots=4, objective=OBJECTIVE, queue_tokens=10_000, **options):
    metrics, replicas = GatewayMetrics(dict, lambda: 0), Replicas(slots, **options)
    clock = asyncio.get_running_loop().time
    return World(replicas, Gate("m", replicas, metrics, lambda: queue_tokens, objective, clock), metrics)


def virtually(test):
    """Run a test function that is a coroutine under a virtual clock."""

    def run():
        run_virtually(test())

    run.__name__ = test.__name__
    return run


@virtually
async def test_with_room_nobody_even_waits_a_turn_of_the_loop():
    entering = world().gate.enter(Ticket("a", 0, 10, 10, 0.0))
    with pytest.raises(StopIteration):
        entering.send(None)


@virtually
async def test_never_more_run_than_there_is_room_for():
    w = world(slots=4, objective=None, queue_tokens=10**9)
    await asyncio.gather(*(w.request() for _ in range(100)))
    assert w.replicas.most == 4
    assert len(w.served) == 100
    assert w.now == pytest.approx(100 / 4 * 0.5, rel=0.02), "replicas stood idle while requests waited"


@virtually
async def test_without_replicas_everybody_passes_to_be_told_so():
    w = world(slots=0)
    await w.gate.enter(Ticket("a", 0, 10, 10, 0.0))
    w.replicas.slots = 1
    tasks = [asyncio.create_task(w.request()) for _ in range(3)]
    await asyncio.sleep(0.01)
    assert w.sample("gateway_queue_requests") == 2
    w.replicas.slots = 0
    w.gate.notify()
    await asyncio.sleep(0.01)
    assert w.sample("gateway_queue_requests") == 0
    await asyncio.gather(*tasks)


@virtually
async def test_who_comes_when_the_replicas_have_just_gone_passes_as_well():
    w = world(slots=1)
    tasks = [asyncio.create_task(w.request()) for _ in range(3)]
    await asyncio.sleep(0.01)
    w.replicas.slots = 0
    await w.gate.enter(Ticket("a", 0, 10, 10, w.now))
    await asyncio.gather(*tasks)
    assert not w.refused


@virtually
async def test_room_is_not_enough_if_the_first_token_would_be_late():
    """All replicas take it, but have so much to compute before: such as long prompts that have just begun."""
    w = world(slots=9, ttft=3.0, service=4.0)
    w.replicas.best_ttft = lambda num_tokens: 2.95 + num_tokens / 1800
    await asyncio.gather(w.request(), w.request(patient=True))
    assert [(seconds, retry) for _, seconds, retry in w.refused] == [(0.0, 2)]
    assert len(w.served) == 1


@virtually
async def test_a_prompt_that_is_late_by_itself_is_served():
    w = world(slots=9, ttft=3.0, service=4.0)
    w.replicas.best_ttft = lambda num_tokens: num_tokens / 30
    await w.request()
    assert len(w.served) == 1


@virtually
async def test_the_queue_is_bounded_in_tokens():
    w = world(slots=1, objective=None, queue_tokens=1000)
    tasks = [asyncio.create_task(w.request(tokens=90, max_tokens=10)) for _ in range(30)]
    await asyncio.sleep(0)
    assert w.sample("gateway_queue_tokens") == 500, "one key takes half of it"
    await asyncio.sleep(0.01)
    assert len(w.refused) == 30 - 1 - 5
    await asyncio.gather(*tasks)
    assert w.sample("refusals_total", model="m", reason="queue_full") == 24
    assert w.sample("gateway_queue_tokens") == 0


@virtually
async def test_a_client_that_leaves_gives_up_its_place():
    w = world(slots=1, objective=None, queue_tokens=2000)
    tasks = [asyncio.create_task(w.request()) for _ in range(11)]
    await asyncio.sleep(0.01)
    for task in tasks[1:6]:
        task.cancel()
    await asyncio.sleep(0.01)
    assert w.sample("gateway_queue_tokens") == 500
    await asyncio.gather(*tasks, return_exceptions=True)
    assert len(w.served) == 6
    assert w.now == pytest.approx(6 * 0.5, rel=0.05)


@virtually
async def test_whoever_leaves_at_the_very_moment_of_its_turn_passes_the_turn_on():
    w = world(slots=1, objective=None)
    tasks = [asyncio.create_task(w.request()) for _ in range(3)]
    await asyncio.sleep(0.01)
    w.replicas.running = 0
    w.gate.notify()
    await asyncio.sleep(0)  # the gate looks, and the second one's turn has come
    tasks[1].cancel()
    await asyncio.sleep(0.01)
    assert w.replicas.running == 1, "nobody took the turn"
    tasks[2].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert w.sample("gateway_queue_tokens") == 0


@virtually
async def test_a_lost_load_report_delays_but_does_not_stop():
    w = world(slots=1, objective=None)
    w.replicas.running = 1
    task = asyncio.create_task(w.request())
    await asyncio.sleep(1)
    w.replicas.running = 0  # and nobody says so
    await asyncio.wait_for(task, 1)


@virtually
async def test_who_would_be_late_is_refused_at_once_and_told_the_truth():
    w = world(slots=2)
    await w.offer(12, 20, Random(3))
    assert w.refused
    pause = max(retry for _, _, retry in w.refused)
    await asyncio.sleep(pause)
    before = len(w.served)
    await w.request()
    assert len(w.served) == before + 1


@virtually
async def test_patient_requests_wait_as_long_as_the_queue_has_room():
    w = world(slots=1)
    await asyncio.gather(*(w.request(patient=True, priority=1) for _ in range(20)))
    assert len(w.served) == 20
    assert max(seconds for _, seconds in w.served) > 9


@virtually
async def test_lower_priority_numbers_go_first():
    w = world(slots=1, objective=None)
    tasks = [asyncio.create_task(w.request(key, priority)) for key, priority in zip("xcab", (0, 2, -1, 1), strict=True)]
    await asyncio.gather(*tasks)
    assert [key for key, _ in w.served] == list("xabc")


@virtually
async def test_under_saturation_keys_share_by_tokens():
    """One floods, one asks modestly with longer requests: both get half of the tokens, or what they ask."""
    w, rng = world(slots=4, objective=None, queue_tokens=20_000), Random(1)
    flood = w.offer(50, 60, rng, key="flood", tokens=90, max_tokens=10)
    await asyncio.gather(flood, w.offer(3, 60, rng, key="modest", tokens=90, max_tokens=10))
    served = Counter(key for key, seconds in w.served)
    assert served["modest"] > 0.9 * 3 * 60 * 0.9
    waits = [seconds for key, seconds in w.served if key == "modest"]
    assert sorted(waits)[len(waits) // 2] < 1.0, "the flood delays the modest key"


@virtually
async def test_ten_times_the_capacity_does_as_much_as_capacity():
    """Goodput: first tokens within the objective. Refusals come at once, but for the few whose hope was in vain."""

    async def goodput(load):
        w = world(slots=10, queue_tokens=10**6)
        capacity = w.replicas.slots / w.replicas.service
        started = w.now
        await w.offer(load * capacity, 30, Random(7))
        assert w.sample("gateway_queue_tokens") == w.replicas.running == 0
        good = sum(seconds <= OBJECTIVE for _, seconds in w.served)
        late = len(w.served) - good
        slow = sum(seconds > 0.1 for _, seconds, _ in w.refused)
        return good / (w.now - started), late, slow / max(1, len(w.refused))

    at_capacity, _, _ = await goodput(1.0)
    overload, late, slow = await goodput(10.0)
    assert overload > 0.95 * at_capacity
    assert late == 0
    assert slow < 0.01


@virtually
async def test_the_time_left_until_the_first_token_is_known():
    metrics = GatewayMetrics(dict, lambda: 0)
    gate = Gate("m", Replicas(1), metrics, lambda: 100, OBJECTIVE, clock=lambda: 10.0)
    assert gate.remaining_seconds(Ticket("k", 0, 5, 5, arrival=9.25)) == 0.25
    assert gate.remaining_seconds(Ticket("k", 0, 5, 5, arrival=8.0)) == 0.0
    assert gate.remaining_seconds(Ticket("k", 0, 5, 5, arrival=9.25, patient=True)) is None


async def test_waits_are_measured():
    w = world(slots=1, objective=None)
    await asyncio.gather(*(w.request() for _ in range(3)))
    assert w.sample("gateway_queue_seconds_count", model="m") == 2
    assert w.sample("gateway_queue_seconds_sum", model="m") == pytest.approx(0.5 + 1.0, abs=0.1)
