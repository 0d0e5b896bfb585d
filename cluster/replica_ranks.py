"""How an engine process has its replica start the other ranks: over the control channel, before it is ready."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import zmq

from cluster.codec import RanksWanted, encode
from replicas.ranks.follower import RankSpec
from replicas.ranks.processes import EXIT_RANK_FAILED, encode_spec, log_stacks


class RanksOfReplica:
    """The other ranks, started by the replica because it was asked to. They end when rank 0, which is this process,
    says so or is gone."""

    def __init__(self, control: zmq.Socket[bytes], specs: Sequence[RankSpec]) -> None:
        control.send_multipart((b"", encode(RanksWanted(tuple(encode_spec(spec) for spec in specs)))))

    def check(self) -> None:
        """The replica ends this process if a rank cannot be started."""

    def close(self) -> None:
        """The replica sees to it."""

    def end_with_engine(self, reason: str, stacks: Mapping[int, str]) -> None:
        log_stacks(reason, stacks)
        os._exit(EXIT_RANK_FAILED)
