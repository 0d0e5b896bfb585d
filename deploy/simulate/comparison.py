"""Several policies under one load, and the highest rate at which each serves it in time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from deploy.errors import UserError
from deploy.simulate.bounds import Bounds, bounds
from deploy.simulate.cluster import Cluster, Shape
from deploy.simulate.dynamo import Dynamo
from deploy.simulate.journal import Figures
from deploy.simulate.load import Arrival, at_rate
from deploy.simulate.policies import Mobula, Policy, PowerOfTwo, PrefixAffinity, RandomChoice, RoundRobin

WANTED_GOODPUT = 0.99

POLICIES: dict[str, Callable[[Random, int], Policy]] = {
    "random": lambda random, _: RandomChoice(random),
    "round_robin": lambda random, _: RoundRobin(random),
    "power_of_two": lambda random, _: PowerOfTwo(random),
    "prefix_affinity": lambda random, _: PrefixAffinity(random),
    "dynamo": Dynamo,
    "mobula": Mobula,
}


@dataclass(frozen=True, slots=True)
class Result:
    """The bounds, the figures of each policy and, where it was asked for, the rate that it serves in time."""

    bounds: Bounds
    figures: dict[str, Figures]
    rates: dict[str, float]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What to compare under which load; `seed` makes it repeatable."""

    shape: Shape
    policies: Sequence[str]
    arrivals: Sequence[Arrival]
    seed: int

    def __post_init__(self) -> None:
        for name in self.policies:
            if name not in POLICIES:
                raise UserError(f"there is no policy {name!r}; there are {', '.join(POLICIES)}")

    def run(self, sweep: bool = False) -> Result:
        total_blocks = self.shape.replicas * self.shape.num_blocks
        limits = bounds(self.arrivals, self.shape.engine.block_size, total_blocks)
        figures = {name: self.serve(name) for name in self.policies}
        rates = {name: self.highest_rate(name) for name in self.policies} if sweep else {}
        return Result(limits, figures, rates)

    def serve(self, policy: str, scale: float = 1.0) -> Figures:
        """The load, `scale` times as fast, under one policy."""
        arrivals = self.arrivals if scale == 1.0 else at_rate(self.arrivals, scale)
        block_size = self.shape.engine.block_size
        cluster = Cluster(self.shape, lambda random: POLICIES[policy](random, block_size), self.seed)
        return cluster.run(arrivals).figures()

    def highest_rate(self, policy: str, precision: float = 0.03) -> float:
        """Requests a second at which 99 % of the load is served in time, by bisection of how fast it comes."""
        low, high, rate = 1 / 8, 8.0, 0.0
        while high / low > 1 + precision:
            found = self.serve(policy, middle := (low * high) ** 0.5)
            if found.goodput >= WANTED_GOODPUT:
                low, rate = middle, found.requests_per_second
            else:
                high = middle
        return rate


def as_json(comparison: Comparison, result: Result) -> dict[str, Any]:
    """Ready for a file; the policies in the order in which they were asked for."""
    shape, limits = comparison.shape, asdict(result.bounds)
    ideal = {"ideal_reuse": limits.pop("ideal_reuse")}
    rates = {name: {"highest_requests_per_second": rate} for name, rate in result.rates.items()}
    return {
        "replicas": shape.replicas,
        "kv_blocks": shape.num_blocks,
        "block_size": shape.engine.block_size,
        "scheduling": shape.engine.policy,
        "gateways": shape.gateways,
        "seed": comparison.seed,
        **limits,
        "policies": [
            {"policy": name, **ideal, **asdict(found), **rates.get(name, {})} for name, found in result.figures.items()
        ],
    }
