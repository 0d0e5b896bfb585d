"""Finds ranks that died or stopped, while the ranks themselves may be stuck in a collective.

Every rank but the first runs a `Pulse`: a thread that says it is alive, shows its stacks when asked, and ends the
process when rank 0 is gone. Rank 0 runs the `Watchdog` that listens. A long computation does not silence a pulse,
since torch releases the interpreter lock; death closes the connection, and SIGSTOP silences it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping

from parallel.channel import Channel, ChannelClosedError

PULSE_SECONDS = 0.25
SILENCE_SECONDS = 4.0
STACKS_SECONDS = 0.5
FAREWELL_SECONDS = 3.0
EXIT_ORPHANED = 71

_ALIVE = b""
_FAREWELL = b"farewell"
_SHOW_STACKS = b"stacks"


class Pulse(threading.Thread):
    """This rank's answer to the watchdog."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(name="pulse", daemon=True)
        self._channel = channel
        self._stopping = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                if self._channel.ready(PULSE_SECONDS):
                    self._channel.receive()
                    self._channel.send(format_stacks().encode())
                else:
                    self._channel.send(_ALIVE)
        except ChannelClosedError:
            if not self._stopping.is_set():
                os._exit(EXIT_ORPHANED)  # the main thread may be stuck for ever

    def leave(self) -> None:
        """End the pulse of a rank that has done its work: its end is no death."""
        self._finish()
        self._channel.send(_FAREWELL)

    def close(self) -> None:
        self._finish()
        self._channel.close()

    def _finish(self) -> None:
        self._stopping.set()
        self.join()


class Watchdog(threading.Thread):
    """Calls `on_failure` once, from its own thread, with what happened and the stacks of all who still answer."""

    def __init__(
        self,
        channels: Mapping[int, Channel],
        on_failure: Callable[[str, Mapping[int, str]], None],
        silence_seconds: float = SILENCE_SECONDS,
    ) -> None:
        super().__init__(name="watchdog", daemon=True)
        self._channels = dict(channels)
        self._on_failure = on_failure
        self._silence_seconds = silence_seconds
        self._stopping = threading.Event()
        self.start()

    def run(self) -> None:
        last_heard = dict.fromkeys(self._channels, time.monotonic())
        while self._channels and not self._stopping.wait(PULSE_SECONDS / 4):
            looked = time.monotonic()
            for rank in tuple(self._channels):
                try:
                    while self._hear(rank):
                        last_heard[rank] = looked
                except ChannelClosedError:
                    self._fail(rank, "has died")
                    return
                if (silence := looked - last_heard[rank]) > self._silence_seconds and rank in self._channels:
                    self._fail(rank, f"has been silent for {silence:.1f} s")
                    return

    def close(self) -> None:
        """Wait a little for the farewells of all, then stop."""
        self.join(FAREWELL_SECONDS)
        self._stopping.set()
        self.join()

    def _hear(self, rank: int) -> bool:
        """Whether the rank had something to say. Who says farewell is watched no more."""
        channel = self._channels.get(rank)
        if channel is None or not channel.ready():
            return False
        if channel.receive() == _FAREWELL:
            del self._channels[rank]
        return True

    def _fail(self, rank: int, what: str) -> None:
        others = {other: channel for other, channel in self._channels.items() if other != rank}
        self._on_failure(f"rank {rank} {what}", {0: format_stacks(), **_ask_for_stacks(others)})


def format_stacks() -> str:
    """Where every thread of this process is."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"Thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )


def _ask_for_stacks(channels: Mapping[int, Channel]) -> dict[int, str]:
    stacks: dict[int, str] = {}
    for rank, channel in channels.items():
        deadline = time.monotonic() + STACKS_SECONDS
        try:
            channel.send(_SHOW_STACKS)
            while not stacks.get(rank) and channel.ready(max(0.0, deadline - time.monotonic())):
                stacks[rank] = channel.receive().decode()
        except ChannelClosedError:
            stacks[rank] = "gone\n"
        if not stacks.get(rank):
            stacks[rank] = "no answer\n"
    return stacks
