"""What can go wrong between a gateway and the replicas."""

from __future__ import annotations


class ReplicaGoneError(RuntimeError):
    """The replica has left, is about to, or cannot be reached: ask another one."""


class ReplicaFullError(RuntimeError):
    """The replica has as many requests as it may have: ask another one."""


class NoReplicaError(RuntimeError):
    """No replica can take the request; it may be worth a try after `retry_after` seconds."""

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class PoisonRequestError(RuntimeError):
    """The request seems to kill replicas, and is not tried again."""
