"""Models divided over ranks through Ray Serve: placement groups on a cluster of several (virtual) nodes, and what
happens when a rank dies or stops.

`make soak` sets MOBULA_SOAK: then each rank is killed and stopped; otherwise each rank is lost in one of these ways.
"""

from __future__ import annotations

import os
import signal
import socket
import time

import httpx
import pytest
from ray.util import placement_group_table

from cluster.codec import RankReport
from cluster.gateway.deployment import gateway_deployment
from cluster.gateway.service import GatewaySettings
from cluster.ingress import Ingress
from cluster.replica import ReplicaSpec, replica_deployment
from cluster.resources import stage_bundles
from cluster.workers import check_reports
from deploy.serve import SERVE_LOGGING
from replicas.build import build_engine
from replicas.config import EngineConfig
from replicas.text.tokenizer import Tokenizer
from tests.support.generation import generate, tokens
from tests.support.processes import ray_processes

pytestmark = pytest.mark.slow

CONFIG = EngineConfig(
    block_size=4,
    max_running=8,
    max_batched_tokens=64,
    kv_cache_memory=4 * 1024**2,
    tensor_parallel=2,
    pipeline_parallel=2,
)
PROMPT = "Rays travel in"
TOKENS = 24
SORTS = [signal.SIGKILL, signal.SIGSTOP]
LOSSES = [(rank, sort) for rank in range(4) for sort in SORTS if "MOBULA_SOAK" in os.environ or sort is SORTS[rank % 2]]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, smollm2_path):
    """A tiny checkpoint with four heads and SmolLM2's tokenizer."""
    from tests.support.checkpoints import write_tiny_with_tokenizer

    return write_tiny_with_tokenizer(tmp_path_factory.mktemp("four-heads"), smollm2_path)


@pytest.fixture(scope="module")
def expected(checkpoint):
    """What one rank answers."""
    from dataclasses import replace

    engine = build_engine(str(checkpoint), replace(CONFIG, tensor_parallel=1, pipeline_parallel=1))
    prompt = Tokenizer.open(checkpoint).encode(PROMPT, add_bos=False, parse_special=True)
    return tokens(generate(engine, [prompt], max_tokens=TOKENS))[0]


@pytest.fixture(scope="module")
def http(serve_cluster, checkpoint):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        ingress = Ingress("gateway", "127.0.0.1", probe.getsockname()[1])
    model = replica_deployment("model-divided", 1, CONFIG, "STRICT_SPREAD").bind(ReplicaSpec(str(checkpoint), CONFIG))
    application = gateway_deployment(1).bind({"divided": model}, GatewaySettings(), ingress)
    serve_cluster.run(application, name="divided", route_prefix="/divided", logging_config=SERVE_LOGGING)
    with httpx.Client(base_url=f"http://127.0.0.1:{ingress.port}", timeout=60) as client:
        yield client
    serve_cluster.delete("divided")


def answer(http, **change):
    body = {"model": "divided", "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True} | change
    return http.post("/v1/completions", json=body)


def engine_pids() -> list[int]:
    return ray_processes("-m cluster.engine_process")


def rank_pids() -> list[int]:
    return ray_processes("ray::RankWorker")


def wait_until_served(http, seconds=90):
    deadline = time.monotonic() + seconds
    while http.get("/health").status_code != 200:
        assert time.monotonic() < deadline, "the replica was not replaced"
        time.sleep(0.2)


def test_tensor_2_times_pipeline_2_answers_as_one_rank(http, checkpoint, expected):
    response = answer(http)
    assert response.status_code == 200, response.text
    text = Tokenizer.open(checkpoint)
    assert response.json()["choices"][0]["text"] == b"".join(text.visible_bytes[t] for t in expected).decode(
        "utf-8", "replace"
    )
    assert len(rank_pids()) == 3
    ranks = http.get("/ready").json()["models"][0]["ranks"]
    assert [(rank["rank"], rank["backend"]) for rank in ranks] == [(number, "gloo") for number in range(4)]


def test_each_stage_lies_on_a_node_of_its_own(http):
    groups = [group for group in placement_group_table().values() if group["state"] == "CREATED"]
    assert len(groups) == 1
    assert len(set(groups[0]["bundles_to_node_id"].values())) == CONFIG.pipeline_parallel


@pytest.mark.parametrize(("rank", "sort"), LOSSES, ids=lambda value: str(getattr(value, "name", value)))
def test_a_lost_rank_is_noticed_and_the_replica_replaced(http, rank, sort):
    """Rank 0 is the engine process. A request in flight waits for the new replica; nothing is left of the old one."""
    wait_until_served(http)
    before = answer(http).json()["choices"][0]["text"]
    undisturbed = answer(http, max_tokens=400, prompt="in flight").json()["choices"]
    engines, ranks = engine_pids(), rank_pids()
    assert (len(engines), len(ranks)) == (1, 3)
    victim = [*engines, *ranks][rank]
    os.kill(victim, sort)
    response = answer(http, max_tokens=400, prompt="in flight")
    assert response.status_code == 200, response.text
    assert response.json()["choices"] == undisturbed
    wait_until_served(http)
    assert answer(http).json()["choices"][0]["text"] == before
    deadline = time.monotonic() + 20
    while left := [pid for pid in (*engines, *ranks) if os.path.exists(f"/proc/{pid}")]:
        assert time.monotonic() < deadline, f"processes {left} were left behind"
        time.sleep(0.2)


class TestPlacement:
    def test_a_bundle_holds_a_stage(self):
        assert stage_bundles(CONFIG) == [{"CPU": 2.0}, {"CPU": 2.0}]
        on_gpus = EngineConfig(device="cuda", tensor_parallel=4, pipeline_parallel=2)
        assert stage_bundles(on_gpus) == [{"CPU": 4.0, "GPU": 4.0}] * 2

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"torch_version": "1.0"}, "has torch 1.0"),
            ({"device": "another GPU"}, "device another GPU"),
        ],
    )
    def test_ranks_that_do_not_fit_together_are_named(self, change, words):
        import torch

        same = {
            "rank": 1,
            "node": "n",
            "address": "a",
            "device": "cpu",
            "backend": "gloo",
            "torch_version": torch.__version__,
            "free_memory": 1,
        }
        check_reports([RankReport(**same), RankReport(**same)])
        with pytest.raises(ValueError, match=words):
            check_reports([RankReport(**same), RankReport(**same | change)])
