"""Sends a plan: in an open loop each conversation starts at its time, whatever became of the others; in a closed loop
so many are under way at once.

Latency counts from the scheduled arrival, not from the moment of sending, so neither a slow server nor a late
generator can hide a wait ("coordinated omission", Gil Tene). What the generator itself cost is measured with it.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from deploy.bench.serve.outcome import Outcome, duration
from deploy.bench.serve.target import Target
from deploy.bench.serve.workload import Conversation

LEAD_SECONDS = 0.05  # from the call to time 0 of the plan

Done = Callable[[Outcome], None]


@dataclass(frozen=True, slots=True)
class Run:
    """What was seen, from the first scheduled arrival to the last byte, and the generator's own CPU time."""

    outcomes: list[Outcome]
    seconds: float
    cpu_seconds: float


async def open_loop(target: Target, planned: Sequence[Conversation], done: Done) -> Run:
    """Start every conversation when its time comes."""

    async def drive() -> list[list[Outcome]]:
        zero = time.perf_counter() + LEAD_SECONDS
        tasks = []
        for conversation in sorted(planned, key=lambda each: each.start):
            request = target.encode(conversation.turns[0])
            scheduled = zero + conversation.start
            await asyncio.sleep(scheduled - time.perf_counter())
            tasks.append(asyncio.create_task(_converse(target, conversation, request, scheduled, done)))
        return await asyncio.gather(*tasks)

    return await _measured(drive)


async def closed_loop(target: Target, planned: Sequence[Conversation], concurrency: int, done: Done) -> Run:
    """Keep `concurrency` conversations under way until all have been held."""
    waiting = iter(planned)

    async def work() -> list[Outcome]:
        outcomes = []
        for conversation in waiting:
            request = target.encode(conversation.turns[0])
            outcomes += await _converse(target, conversation, request, time.perf_counter(), done)
        return outcomes

    async def drive() -> list[list[Outcome]]:
        return await asyncio.gather(*(work() for _ in range(concurrency)))

    return await _measured(drive)


async def _converse(
    target: Target, conversation: Conversation, request: bytes, scheduled: float, done: Done
) -> list[Outcome]:
    """Send the turns one after another. One that failed does not end the conversation."""
    outcomes = [await target.send(request, scheduled)]
    done(outcomes[0])
    for turn in conversation.turns[1:]:
        request = target.encode(turn)
        due = outcomes[-1].ended + conversation.pause if conversation.pause else time.perf_counter()
        await asyncio.sleep(due - time.perf_counter())
        outcomes.append(await target.send(request, due))
        done(outcomes[-1])
    return outcomes


async def _measured(drive: Callable[[], Awaitable[list[list[Outcome]]]]) -> Run:
    gc.collect()
    gc.freeze()  # the plan is no garbage, so there is no need to look through it again
    cpu = time.process_time()
    try:
        outcomes = [outcome for each in await drive() for outcome in each]
    finally:
        gc.unfreeze()
    return Run(outcomes, duration(outcomes), time.process_time() - cpu)
