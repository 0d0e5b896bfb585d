"""What becomes of a request whose replica has failed it: whether it is tried again, and where it had better not be."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from cluster.errors import NoReplicaError, PoisonRequestError

FIRST_TOKENS = 4
MAX_SUSPICIONS = 2
MAX_IDLE_TRIES = 4


class Broken(Enum):
    """Why an attempt ended without an answer."""

    LOST = "the replica died, stood still or could not be reached"
    SILENT = "the replica did not take the request in"
    FULL = "the replica has as many requests as it may have"
    GONE = "the replica had left"
    MOVED = "the replica drains, and another can go on"
    GIVEN_UP = "the engine ended the request unasked"


@dataclass(slots=True)
class Record:
    """What has befallen a request. It is given up after too many attempts in a row without a new token, and as poison
    after two deaths that fell into its own admission or first steps; deaths while it waited or was well under way are
    not its fault."""

    breaks: list[Broken] = field(default_factory=list)
    avoid: set[str] = field(default_factory=set)
    idle_tries: int = 0
    suspicions: int = 0

    def note(self, broken: Broken, replica: str, has_begun: bool, new_tokens: int) -> None:
        """An attempt at `replica` ended after `new_tokens` tokens; `has_begun` says whether it was ever computed."""
        self.breaks.append(broken)
        self.avoid.add(replica)
        if broken is Broken.MOVED or new_tokens:
            self.idle_tries = 0
        elif broken not in (Broken.FULL, Broken.GONE):
            self.idle_tries += 1
        if broken is Broken.LOST and has_begun and new_tokens < FIRST_TOKENS:
            self.suspicions += 1

    def check(self) -> None:
        """Raise PoisonRequestError or NoReplicaError if the request has to be given up."""
        if self.suspicions >= MAX_SUSPICIONS:
            raise PoisonRequestError("The request was stopped: two replicas died when they began with it.")
        if self.idle_tries >= MAX_IDLE_TRIES:
            raise NoReplicaError("The replicas that were asked have all failed; try again.")
