"""An embedding model as `mobula serve` deploys it: requests that come at the same time share a batch."""

from __future__ import annotations

import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from cluster.ingress import Ingress
from deploy.app import build_application
from deploy.config import load_config
from deploy.preflight import fetch_models
from deploy.serve import SERVE_LOGGING
from tests.support.processes import ray_processes

pytestmark = pytest.mark.slow

CONFIG = """
models:
  - id: minilm
    source: all-minilm-l6-v2
    replicas: {min: 1}
    engine: {threads: 1}
    embedding: {max_batch_size: 8, batch_wait: 200ms}
"""


@pytest.fixture(scope="module")
def http(serve_cluster, tmp_path_factory):
    path = tmp_path_factory.mktemp("embed") / "embed.yaml"
    path.write_text(CONFIG)
    config = load_config(path)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        ingress = Ingress("gateway", "127.0.0.1", probe.getsockname()[1])
    application = build_application(config, fetch_models(config, quiet=True), ingress, "127.0.0.1")
    serve_cluster.run(application, name="embed", logging_config=SERVE_LOGGING)
    with httpx.Client(base_url=f"http://127.0.0.1:{ingress.port}", timeout=60) as client:
        yield client
    serve_cluster.delete("embed")


def embed(http, texts):
    response = http.post("/v1/embeddings", json={"model": "minilm", "input": texts})
    assert response.status_code == 200, response.text
    return [item["embedding"] for item in response.json()["data"]]


def batches(http):
    """How many texts were in a batch of at most so many."""
    lines = (line.split() for line in http.get("/metrics").text.splitlines())
    return {words[0]: float(words[1]) for words in lines if words[0].startswith("mobula_embedding_batch_size")}


def test_texts_of_many_requests_are_computed_together_and_not_mixed_up(http):
    texts = [f"text number {index} " * (index + 1) for index in range(8)]
    alone = [embed(http, [text])[0] for text in texts]
    before = batches(http)
    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(lambda text: embed(http, [text])[0], texts))
    for one, other in zip(together, alone, strict=True):
        assert one == pytest.approx(other, abs=1e-6)
    after = batches(http)
    total = 'mobula_embedding_batch_size_sum{model="minilm"}'
    assert after[total] - before[total] > 16  # of eight texts: two or more to a batch, on average


def test_a_batch_has_no_more_texts_than_allowed_and_the_settings_are_told(http):
    before = batches(http)
    assert len(embed(http, ["many"] * 20)) == 20
    after, most = batches(http), 'mobula_embedding_batch_size_bucket{le="8.0",model="minilm"}'
    assert after[most] - before[most] == 20
    metrics = http.get("/metrics").text
    assert 'mobula_embedding_max_batch_size{model="minilm"} 8.0' in metrics
    assert 'mobula_embedding_batch_wait_seconds{model="minilm"} 0.2' in metrics


def test_health_crosses_the_batches(http):
    assert http.get("/health").status_code == 200
    assert http.get("/ready").json()["embedding_models"][0]["pooling"] == "mean"


def test_a_replica_that_is_killed_in_mid_batch_is_not_noticed(http):
    texts = [f"{index} " + "word " * 200 for index in range(40)]
    expected = embed(http, texts)
    (before,) = ray_processes("ServeReplica:embed:model-minilm")
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(embed, http, texts)
        time.sleep(0.3)
        assert not answer.done()
        os.kill(before, signal.SIGKILL)
        assert np.allclose(answer.result(), expected, atol=1e-6)
    assert ray_processes("ServeReplica:embed:model-minilm") != [before]
