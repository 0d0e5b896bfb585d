"""What goes wrong while ranks start is told by rank 0, with the rank and the reason."""

from __future__ import annotations

import socket
import threading
import time

import pytest
import torch

from parallel.channel import Channel
from parallel.groups import RankGroup
from parallel.mesh import Mesh
from replicas.config import EngineConfig
from replicas.ranks.follower import RankSpec, serve_plans
from replicas.ranks.leader import OVER, Address, Rendezvous
from replicas.ranks.processes import RankProcesses, decode_spec, encode_spec

ADDRESS = Address("127.0.0.1", 1, 2)
SPEC = RankSpec(3, ADDRESS, "no/such/model", EngineConfig(tensor_parallel=4, itl_objective=0.05), 10, "cpu")


def keep_checking(processes: RankProcesses, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        processes.check()
        time.sleep(0.05)


def test_a_spec_arrives_as_it_was_sent():
    assert decode_spec(encode_spec(SPEC)) == SPEC


def test_a_rank_that_cannot_load_says_why_and_waits_to_be_dismissed():
    ours, theirs = map(Channel, socket.socketpair())
    rank = threading.Thread(target=serve_plans, args=(SPEC, RankGroup(Mesh(), torch.device("cpu")), theirs))
    rank.start()
    assert ours.receive() == b"rank 3: no/such/model: no such file or folder"
    assert rank.is_alive()
    ours.send(OVER)
    rank.join(5)
    assert not rank.is_alive()


@pytest.mark.slow
def test_a_process_that_ends_before_it_joins_is_noticed(capfd):
    processes = RankProcesses([SPEC])
    with pytest.raises(RuntimeError, match="the process of rank 3 ended with status 1 before it joined"):
        keep_checking(processes, seconds=30)
    processes.close()
    assert "ConnectionRefusedError" in capfd.readouterr().err


def test_every_rendezvous_has_ports_of_its_own_and_gives_them_back():
    first, second = Rendezvous("127.0.0.1"), Rendezvous("127.0.0.1")
    ports = [first.address.store_port, first.address.channel_port, second.address.store_port]
    assert len(set(ports)) == 3
    first.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", ports[1]))
    second.close()
