"""What a replica asks of a cluster, and whether the cluster has it."""

from __future__ import annotations

import pytest

from cluster.resources import check_fits, num_cpus, stage_bundles
from replicas.config import EngineConfig

EIGHT_GPUS = {"CPU": 64.0, "GPU": 8.0}


def on_gpus(tensor: int, pipeline: int = 1) -> EngineConfig:
    return EngineConfig(device="cuda", tensor_parallel=tensor, pipeline_parallel=pipeline)


def test_threads_are_logical_cpus_of_each_rank():
    config = EngineConfig(threads=3, tensor_parallel=2, pipeline_parallel=2)
    assert stage_bundles(config) == [{"CPU": 6.0}] * 2
    assert num_cpus(config) == 12


@pytest.mark.parametrize(
    ("nodes", "config", "replicas"),
    [
        ([EIGHT_GPUS], on_gpus(8), 1),
        ([EIGHT_GPUS], on_gpus(2), 4),
        ([EIGHT_GPUS, EIGHT_GPUS], on_gpus(8, 2), 1),
        ([{"CPU": 8.0, "GPU": 3.0}, {"CPU": 8.0, "GPU": 5.0}], on_gpus(2, 3), 1),
        ([{"CPU": 2.0}], EngineConfig(), 2),
    ],
)
def test_what_fits_is_accepted(nodes, config, replicas):
    check_fits(nodes, "m", config, replicas)


@pytest.mark.parametrize(
    ("nodes", "config", "replicas", "sentence"),
    [
        ([{"CPU": 8.0}], on_gpus(1), 1, "needs 1 GPUs on one node for tensor 1, but the largest node has 0"),
        ([EIGHT_GPUS] * 2, on_gpus(16), 1, "needs 16 GPUs on one node for tensor 16, but the largest node has 8"),
        ([EIGHT_GPUS], on_gpus(4, 3), 1, "needs 12 GPUs for 1 replicas .* but there are 8 on 1 nodes"),
        ([{"CPU": 8.0, "GPU": 3.0}] * 2, on_gpus(2, 3), 1, "a stage on one node, but there are 6 on 2 nodes"),
        ([EIGHT_GPUS], on_gpus(8), 2, "needs 16 GPUs for 2 replicas"),
    ],
)
def test_what_cannot_fit_is_told_in_one_sentence(nodes, config, replicas, sentence):
    with pytest.raises(ValueError, match=sentence):
        check_fits(nodes, "m", config, replicas)
