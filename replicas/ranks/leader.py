"""Rank 0's side of a group of ranks: it lives in the engine's process, opens the door, and leads.

It opens a `Rendezvous`, has the other ranks started, by whatever means, each with a `RankSpec` that holds the address,
and joins them with `lead`.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch

from parallel.channel import Channel, accept_channels
from parallel.groups import JOIN_SECONDS, MeetingPlace, RankGroup, joined
from parallel.watchdog import SILENCE_SECONDS, Watchdog
from replicas.config import EngineConfig

PLANS, PULSE = PURPOSES = range(2)
READY = b""
OVER = b""


@dataclass(frozen=True, slots=True)
class Address:
    """Where rank 0 awaits the others: `store_port` for process groups, `channel_port` for plans and pulses."""

    host: str
    store_port: int
    channel_port: int


class Rendezvous:
    """Rank 0's open door: free ports, held from the start."""

    def __init__(self, host: str) -> None:
        self.place = MeetingPlace.open(host)
        self.listener = socket.create_server((host, 0))

    @property
    def address(self) -> Address:
        return Address(self.place.host, self.place.port, self.listener.getsockname()[1])

    def close(self) -> None:
        self.listener.close()


@dataclass(frozen=True, slots=True)
class Lead:
    """Rank 0's side of a joined group."""

    group: RankGroup
    plans: Mapping[int, Channel]
    watchdog: Watchdog

    def tell(self, message: bytes) -> None:
        for channel in self.plans.values():
            channel.send(message)

    def await_ready(self) -> None:
        """Wait until every rank has its part of the model. Raises ValueError with a rank's reason not to."""
        for channel in self.plans.values():
            if (message := channel.receive()) != READY:
                raise ValueError(message.decode())


@contextmanager
def lead(
    rendezvous: Rendezvous,
    config: EngineConfig,
    device: torch.device,
    check: Callable[[], None],
    on_failure: Callable[[str, Mapping[int, str]], None],
    silence_seconds: float = SILENCE_SECONDS,
) -> Iterator[Lead]:
    """Join as rank 0; at the end all ranks part. `check` may raise while ranks are awaited; afterwards the watchdog
    calls `on_failure`."""
    tensor, pipeline = config.tensor_parallel, config.pipeline_parallel
    others = range(1, tensor * pipeline)
    with ExitStack() as stack:
        stack.callback(rendezvous.close)
        channels = accept_channels(rendezvous.listener, others, PURPOSES, JOIN_SECONDS, check)
        for channel in channels.values():
            stack.callback(channel.close)
        watchdog = Watchdog({rank: channels[rank, PULSE] for rank in others}, on_failure, silence_seconds)
        stack.callback(watchdog.close)
        group = stack.enter_context(joined(rendezvous.place, tensor, pipeline, 0, device))
        leader = Lead(group, {rank: channels[rank, PLANS] for rank in others}, watchdog)
        stack.callback(leader.tell, OVER)
        yield leader
