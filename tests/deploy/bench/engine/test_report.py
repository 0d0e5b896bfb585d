"""Shares of the limit, ratios and warnings, on readings whose numbers are known."""

from __future__ import annotations

from dataclasses import replace

import torch

from deploy.bench.engine.ablations import applicable
from deploy.bench.engine.limits import Limits
from deploy.bench.engine.phases import Reading, medians
from deploy.bench.engine.report import as_json, ratio, share, share_cells, warnings
from deploy.bench.engine.session import Ablated, Measured
from deploy.bench.engine.work import Form, Work
from deploy.plan.shapes import SHAPES
from replicas.config import EngineConfig

LIMITS = Limits(memory=100.0, step=50.0, matrix=1000.0)
DECODE = Reading("single stream", "ITL", "ms", 2000.0, work=Work(flops=10, bytes=100), seconds=2.0)
TOO_FAST = Reading("prefill", "prompts", "tokens/s", 1.0, "more", Work(flops=4000, bytes=1), seconds=3.0)
REUSED = Reading("shared prefix", "reused", "%", 80.0, "more")


def measured(*readings: Reading, ablated: list[Ablated] | None = None) -> Measured:
    form = Form("float32", 4, 4, 4, (torch.float32,))
    return Measured(next(iter(SHAPES.values())), form, 2, LIMITS, list(readings), ablated or [])


def test_a_share_is_the_least_time_over_the_time_taken() -> None:
    assert share(DECODE, LIMITS) == 0.5
    assert share_cells(DECODE, LIMITS) == ("50%", "memory")
    assert share(REUSED, LIMITS) is None


def test_a_limit_below_what_was_reached_is_called_wrong() -> None:
    assert list(warnings(measured(DECODE, REUSED))) == []
    (warning,) = warnings(measured(DECODE, TOO_FAST))
    assert "prefill reached 133% of what should be the limit" in warning


def test_a_ratio_says_how_much_better_whichever_way_is_better() -> None:
    assert ratio(Reading("p", "n", "ms", 10.0), Reading("p", "n", "ms", 30.0)) == 3.0
    assert ratio(Reading("p", "n", "/s", 30.0, "more"), Reading("p", "n", "/s", 10.0, "more")) == 3.0
    assert ratio(REUSED, Reading("p", "n", "%", 0.0, "more")) == float("inf")
    assert ratio(Reading("p", "n", "%", 0.0, "more"), Reading("p", "n", "%", 0.0, "more")) == 1.0


def test_the_median_round_counts_for_each_reading_by_itself() -> None:
    values = ([1.0, 9.0], [3.0, 7.0], [2.0, 8.0])
    rounds = [[Reading("p", "n", "ms", value) for value in row] for row in values]
    assert [reading.value for reading in medians(rounds)] == [2.0, 8.0]
    assert [reading.value for reading in medians(rounds[:2])] == [1.0, 7.0]


def test_only_mechanisms_in_use_are_switched_off() -> None:
    asked = EngineConfig(prefix_caching=False, threads=1, max_running=1, max_batched_tokens=64)
    own = replace(asked, dtype="float32", quantization="none", kernels="torch")
    assert [name for name, _ in applicable(asked, own)] == ["cutting prompts"]


def test_an_ablation_changes_what_was_asked_for_so_that_the_rest_is_decided_as_before() -> None:
    asked = EngineConfig(threads=2)
    own = replace(asked, dtype="bfloat16", quantization="int4", kernels="compiled")
    found = dict(applicable(asked, own))
    assert found["quantization"] == replace(asked, quantization="none")
    assert found["quantization"].dtype == "auto"
    assert found["compiled kernels"].kernels == "torch"
    assert found["recorded decodes"] == replace(asked, record_decodes=False)
    assert "16-bit weights" not in found
    assert all(without != asked for without in found.values())


def test_the_record_holds_every_reading_and_its_share() -> None:
    record = as_json(measured(DECODE, REUSED, ablated=[Ablated("batching", [DECODE, REUSED])]), {"rounds": 3})
    assert record["readings"][0]["share_of_limit"] == 0.5
    assert record["readings"][1]["value"] == 80.0
    assert record["limits"] == {"memory": 100.0, "step": 50.0, "matrix": 1000.0}
    assert [reading["name"] for reading in record["ablated"]["batching"]] == ["ITL", "reused"]
    assert "share_of_limit" not in record["ablated"]["batching"][0]
