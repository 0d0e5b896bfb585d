"""What each server is asked, as options of `mobula bench serve`."""

from __future__ import annotations

from dataclasses import dataclass

RATES = (1.0, 2.0, 4.0)
SHARES_OF_CAPACITY = (0.5, 0.8)


@dataclass(frozen=True, slots=True)
class Scenario:
    """`name` is that of the result's file, too."""

    name: str
    options: tuple[str, ...]

    @staticmethod
    def of(name: str, options: str) -> Scenario:
        return Scenario(name, tuple(options.split()))


OFFLINE = Scenario.of("offline", "--requests 64 --concurrency 64 --input 32-512 --output 128")
SINGLE = Scenario.of("single", "--requests 8 --concurrency 1 --input 128 --output 128")
PREFIX = Scenario.of("prefix", "--requests 32 --concurrency 32 --prefix 1024 --input 16 --output 16 --warmup 0")
CAPACITY = Scenario.of("capacity", "--requests 96 --concurrency 32 --input 200 --output 64")
CLOSED = (OFFLINE, SINGLE, PREFIX, CAPACITY)


def at_rate(rate: float, name: str | None = None) -> Scenario:
    """Poisson arrivals for a minute, but at least 20."""
    options = f"--rate {rate:.4g} --duration 60s --input 200 --output 64"
    return Scenario.of(name or f"rate-{rate:g}", options)


def open_loops(capacity: float) -> list[Scenario]:
    """At the fixed rates, and at shares of what the server itself can do (`capacity`, requests a second)."""
    shares = [at_rate(share * capacity, f"capacity-{share:.0%}".rstrip("%")) for share in SHARES_OF_CAPACITY]
    return [*(at_rate(rate) for rate in RATES), *shares]
