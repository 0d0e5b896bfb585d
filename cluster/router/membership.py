"""Which replicas of a deployment Ray Serve counts as running, as this process hears it.

Serve makes its request routers from a pickled copy of their class, so what the router of a handle and the rest of the
process share has to live in a module of its own: here. Routers may run in a thread of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

BUS_ADDRESS = "bus_address"  # in what a replica tells of itself through Serve

Members = Mapping[str, str]  # a replica's unique id: the address of its engine's bus
OnMembers = Callable[[Members], None]


@dataclass(slots=True)
class Membership:
    """One deployment's replicas. Those that start are not in it yet, those that drain no longer."""

    members: dict[str, str] = field(default_factory=dict)
    _watchers: list[tuple[asyncio.AbstractEventLoop, OnMembers]] = field(default_factory=list)

    def watch(self, on_members: OnMembers) -> None:
        """Call back on the present event loop, now and at every change."""
        self._watchers.append((asyncio.get_running_loop(), on_members))
        on_members(dict(self.members))

    def publish(self, members: Members) -> None:
        """For the router: Serve has told it which replicas run."""
        if members == self.members:
            return
        self.members = dict(members)
        for loop, on_members in self._watchers:
            loop.call_soon_threadsafe(on_members, dict(members))


_MEMBERSHIPS: dict[tuple[str, str], Membership] = {}


def membership(application: str, deployment: str) -> Membership:
    """The one membership of this deployment in this process."""
    return _MEMBERSHIPS.setdefault((application, deployment), Membership())
