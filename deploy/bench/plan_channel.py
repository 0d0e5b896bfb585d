"""`python -m deploy.bench.plan_channel`: what one step's plan costs each rank, from the scheduler's plan to the other
ranks' own, without any computing."""

from __future__ import annotations

import argparse
import socket
import struct
import time
from collections.abc import Callable
from statistics import median

from torch.multiprocessing.spawn import spawn

from parallel.channel import Channel, accept_channels
from parallel.groups import JOIN_SECONDS
from replicas.plan import StepPlan, Work
from replicas.ranks.leader import OVER
from replicas.ranks.plan_codec import decode_plan, encode_plan

HOST = "127.0.0.1"
WARM_UP = 50
_TIME = struct.Struct("<d")


def decode_step(batch: int, block_size: int = 16) -> StepPlan:
    """One token for each of `batch` requests, some of which need a new block."""
    work = tuple(Work(slot, 1, (7 * slot,) if slot % block_size == 0 else ()) for slot in range(batch))
    return StepPlan((), (), work, batch)


def microseconds(call: Callable[[], object], repetitions: int) -> float:
    """The median time of a call."""
    times = []
    for _ in range(WARM_UP + repetitions):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return 1e6 * median(times[WARM_UP:])


def measure(batch: int, ranks: int, steps: int) -> dict[str, float]:
    """Medians in microseconds: encoding, decoding, and the whole way until the last rank has the plan, by the clock
    that the processes of one host share."""
    plan = decode_step(batch)
    message = encode_plan(plan)
    listener = socket.create_server((HOST, 0))
    processes = spawn(_follow, (listener.getsockname()[1],), nprocs=ranks - 1, join=False)
    channels = accept_channels(listener, range(1, ranks), range(1), JOIN_SECONDS, lambda: None).values()
    listener.close()

    def way() -> float:
        started = time.monotonic()
        data = encode_plan(plan)
        for channel in channels:
            channel.send(data)
        arrivals: list[float] = [_TIME.unpack(channel.receive())[0] for channel in channels]
        return max(arrivals) - started

    ways = [way() for _ in range(WARM_UP + steps)]
    figures = {
        "bytes": float(len(message)),
        "encode": microseconds(lambda: encode_plan(plan), steps),
        "decode": microseconds(lambda: decode_plan(message), steps),
        "way": 1e6 * median(ways[WARM_UP:]),
    }
    for channel in channels:
        channel.send(OVER)
    processes.join()
    return figures


def _follow(index: int, port: int) -> None:
    channel = Channel.connect(HOST, port, rank=index + 1, purpose=0)
    while (message := channel.receive()) != OVER:
        decode_plan(message)
        channel.send(_TIME.pack(time.monotonic()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()
    figures = measure(options.batch, options.ranks, options.steps)
    print(f"batch {options.batch}, {options.ranks} ranks: a plan of {figures['bytes']:.0f} bytes")
    print(f"  encode {figures['encode']:.0f} µs, once; decode {figures['decode']:.0f} µs on each other rank")
    print(f"  from the scheduler's plan to the last rank's own: {figures['way']:.0f} µs")


if __name__ == "__main__":
    main()
