"""What each server is asked, as options of `mobula bench serve`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

RATES = (1.0, 2.0, 4.0)
SHARES_OF_CAPACITY = (0.5, 0.8)
SMALL = {"--requests": "4", "--warmup": "0"}


@dataclass(frozen=True, slots=True)
class Scenario:
    """`name` is that of the result's files, too. Every option has a value."""

    name: str
    options: Mapping[str, str]

    @staticmethod
    def of(name: str, options: str) -> Scenario:
        words = options.split()
        return Scenario(name, dict(zip(words[::2], words[1::2], strict=True)))

    @property
    def arguments(self) -> list[str]:
        return [word for option in self.options.items() for word in option]

    def small(self) -> Scenario:
        """A few requests, to see that everything works."""
        kept = {name: value for name, value in self.options.items() if name != "--duration"}
        return Scenario(self.name, kept | SMALL)


OFFLINE = Scenario.of("offline", "--requests 64 --concurrency 64 --input 32-512 --output 128")
SINGLE = Scenario.of("single", "--requests 8 --concurrency 1 --input 128 --output 128")
PREFIX = Scenario.of("prefix", "--requests 32 --concurrency 32 --prefix 1024 --input 16 --output 16 --warmup 0")
CAPACITY = Scenario.of("capacity", "--requests 96 --concurrency 32 --input 200 --output 64")
CLOSED = (OFFLINE, SINGLE, PREFIX, CAPACITY)


def open_loops(capacity: float, seconds: int) -> list[Scenario]:
    """Poisson arrivals for so many seconds at the fixed rates, and at shares of what the server itself can do
    (`capacity`, requests/s)."""
    rates = {f"rate-{rate:g}": rate for rate in RATES}
    rates |= {f"capacity-{100 * share:g}": share * capacity for share in SHARES_OF_CAPACITY}
    return [
        Scenario.of(name, f"--rate {rate:.4g} --duration {seconds}s --input 200 --output 64")
        for name, rate in rates.items()
    ]
