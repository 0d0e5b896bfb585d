"""Ray Serve's end of placement: a request router that sends each call where it was told to.

The gateway places requests (`placement.py`) and names the replica in the call's first argument. Serve still counts the
call, enforces the replica's limit, and says which replicas run. The router answers within the caller's own coroutine:
Serve's queue of pending requests, in which calls of one context can hang, is not involved. That is an override of an
underscore method, which Ray's own CapacityQueueRouter does too, and the reason for pinning Ray's minor version.
"""

from __future__ import annotations

from typing import Any

from ray.serve._private.common import ReplicaID
from ray.serve._private.request_router.common import PendingRequest
from ray.serve._private.request_router.pow_2_router import PowerOfTwoChoicesRequestRouter
from ray.serve._private.request_router.replica_wrapper import RunningReplica

from cluster.errors import ReplicaFullError, ReplicaGoneError
from cluster.router.membership import BUS_ADDRESS, membership

DIRECTED_METHOD = "submit"


class DirectedRouter(PowerOfTwoChoicesRequestRouter):
    """Calls of `submit(replica, call_id, ...)` go to that replica or fail at once; others go where Serve likes."""

    def initialize_state(self, **kwargs: Any) -> None:
        self._by_name: dict[str, RunningReplica] = {}
        self._unreachable: set[ReplicaID] = set()
        self._membership = membership(self._deployment_id.app_name, self._deployment_id.name)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        self._publish()

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        super().on_replica_actor_died(replica_id)
        self._publish()

    def on_replica_actor_unavailable(self, replica_id: ReplicaID) -> None:
        super().on_replica_actor_unavailable(replica_id)
        self._unreachable.add(replica_id)

    async def _choose_replica_for_request(
        self, pending_request: PendingRequest, *, is_retry: bool = False
    ) -> RunningReplica:
        if pending_request.metadata.call_method != DIRECTED_METHOD:
            return await super()._choose_replica_for_request(pending_request, is_retry=is_retry)
        name = pending_request.args[0]
        replica = self._by_name.get(name)
        if replica is None:
            raise ReplicaGoneError(f"replica {name} no longer takes requests")
        if not is_retry:
            self._unreachable.discard(replica.replica_id)
            return replica
        if replica.replica_id in self._unreachable:
            raise ReplicaGoneError(f"replica {name} cannot be reached")
        raise ReplicaFullError(f"replica {name} takes no more requests at present")

    def _publish(self) -> None:
        replicas = self.curr_replicas.values()
        self._by_name = {replica.replica_id.unique_id: replica for replica in replicas}
        self._membership.publish(
            {name: replica.replica_metadata[BUS_ADDRESS] for name, replica in self._by_name.items()}
        )
