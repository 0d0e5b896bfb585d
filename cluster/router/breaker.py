"""A circuit breaker for each replica (Nygard, "Release It!"): one that fails, or is far slower than its peers, is left
alone for a while and then tried with one request at a time.

What counts as a failure is the caller's judgement: an attempt that the replica lost, not one that it refused or whose
client went away. When no replica is allowed the caller decides, too: this is advice, and all may have failed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import inf
from statistics import median
from typing import Literal

State = Literal["closed", "open", "half_open"]

FAILURES = 3  # in a row open a circuit
SAMPLES = 9  # a replica's slowness is their median
MIN_PEERS = 2  # who are closed and have as many samples: so latency leaves at least these
SLOW_RATIO = 4.0  # times the median of the peers is far off
SAMPLE_SECONDS = 60.0  # after so long without a sample nothing is known of a peer's slowness
FIRST_PAUSE, MAX_PAUSE = 1.0, 60.0  # seconds; it doubles each time
CALM_SECONDS = 60.0  # closed for so long, a circuit starts again with the first pause
PROBE_SECONDS = 30.0  # after so long without a verdict a probe is given up


@dataclass(slots=True)
class _Circuit:
    """Open until `retry_at`, half open from then on; closed if that is None."""

    retry_at: float | None = None
    pause: float = 0.0
    closed_at: float = -inf
    probed_until: float = -inf
    failures: int = 0
    samples: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    slowness: float | None = None  # none without enough samples
    sampled_at: float = -inf

    def state(self, now: float) -> State:
        if self.retry_at is None:
            return "closed"
        return "open" if now < self.retry_at else "half_open"

    def open(self, now: float) -> None:
        calm = self.retry_at is None and now - self.closed_at > CALM_SECONDS
        self.pause = FIRST_PAUSE if calm else min(2 * self.pause, MAX_PAUSE)
        self.retry_at = now + self.pause
        self.probed_until, self.failures, self.slowness = -inf, 0, None
        self.samples.clear()

    def close(self, now: float) -> None:
        self.retry_at, self.closed_at = None, now

    def sample(self, slowness: float, now: float) -> None:
        self.samples.append(slowness)
        self.sampled_at = now
        if len(self.samples) == SAMPLES:
            self.slowness = median(self.samples)


class Breaker:
    """Advises one gateway. A replica that it was never told of is closed."""

    def __init__(self) -> None:
        self._circuits: dict[str, _Circuit] = {}

    def state(self, replica: str, now: float) -> State:
        circuit = self._circuits.get(replica)
        return circuit.state(now) if circuit else "closed"

    def allows(self, replica: str, now: float) -> bool:
        """Whether a request may be sent there. While half open: one, until it is known how it went."""
        circuit = self._circuits.get(replica)
        if circuit is None or circuit.retry_at is None:
            return True
        return now >= max(circuit.retry_at, circuit.probed_until)

    def shunned(self, now: float) -> frozenset[str]:
        """Those to which no request may be sent."""
        return frozenset(replica for replica in self._circuits if not self.allows(replica, now))

    def began(self, replica: str, now: float) -> None:
        """A request was sent there: it is the probe if the circuit is half open."""
        circuit = self._circuits.get(replica)
        if circuit is not None and circuit.state(now) == "half_open":
            circuit.probed_until = now + PROBE_SECONDS

    def succeeded(self, replica: str, slowness: float, now: float) -> None:
        """A first token came. `slowness` is the time that it took over the time that was predicted, or any other
        measure that is alike on all replicas and twice as large where a request takes twice as long."""
        circuit = self._circuits.setdefault(replica, _Circuit())
        match circuit.state(now):
            case "open":  # of a request from before
                return
            case "half_open":
                if self._is_far_off(circuit, slowness, now):
                    circuit.open(now)
                else:
                    circuit.close(now)
            case "closed":
                circuit.failures = 0
                circuit.sample(slowness, now)
                if circuit.slowness is not None and self._is_far_off(circuit, circuit.slowness, now):
                    circuit.open(now)

    def failed(self, replica: str, now: float) -> None:
        """A request was lost there."""
        circuit = self._circuits.setdefault(replica, _Circuit())
        state = circuit.state(now)
        if state == "open":
            return
        circuit.failures += 1
        if state == "half_open" or circuit.failures >= FAILURES:
            circuit.open(now)

    def forget(self, replica: str) -> None:
        """The replica has left, or its engine has started anew."""
        self._circuits.pop(replica, None)

    def _is_far_off(self, circuit: _Circuit, slowness: float, now: float) -> bool:
        peers = [
            peer.slowness
            for peer in self._circuits.values()
            if peer is not circuit
            and peer.retry_at is None
            and peer.slowness is not None
            and now - peer.sampled_at <= SAMPLE_SECONDS
        ]
        return len(peers) >= MIN_PEERS and slowness > SLOW_RATIO * median(peers)
