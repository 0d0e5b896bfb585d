"""The command: what it recommends, what it says, and how it refuses."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deploy import cli
from deploy.plan.candidates import Candidate, Demand, recommended
from deploy.plan.devices import GPUS
from deploy.plan.layout import Layout
from deploy.plan.plan import Plan, Request, make_plan
from deploy.plan.report import as_json, recommendation
from deploy.plan.tables import OUR_TABLES
from tests.support.checkpoints import TINY_CONFIGS, write_config


def plan_for(model: str, **changes: object) -> Plan:
    asked = {"gpus": 8, "gpu": "h200", "dtype": "auto", "batch": 256, "context": None, "prompt": None, "itl": None}
    return make_plan(Request(**{"model": model, "ttft": None, "tables": OUR_TABLES, **asked, **changes}))  # type: ignore[arg-type]


def chosen(plan: Plan) -> Layout | None:
    candidate = recommended(plan.candidates, plan.demand)
    return candidate and candidate.layout


def test_a_model_that_fits_one_gpu_is_not_divided() -> None:
    plan = plan_for("llama-3.1-8b")
    assert chosen(plan) == Layout(1, 1)
    assert "tensor 1 × pipeline 1, 8 replicas on 8 GPUs" in recommendation(plan)


def test_a_model_that_does_not_fit_is_divided_as_little_as_will_do() -> None:
    assert chosen(plan_for("llama-3.3-70b")) == Layout(2, 1)
    assert chosen(plan_for("llama-3.3-70b", gpu="h100")) == Layout(4, 1)
    assert chosen(plan_for("llama-3.1-405b", batch=64)) == Layout(8, 1)


def test_an_objective_may_ask_for_more_gpus() -> None:
    for itl in ("9ms", "8ms"):
        layout = chosen(plan_for("llama-3.1-8b", itl=itl))
        assert layout is not None
        assert layout.gpus > 1


def test_what_cannot_be_done_is_said() -> None:
    assert "No layout keeps ITL within 0.1 ms" in recommendation(plan_for("llama-3.1-8b", itl="100us"))
    assert "Nothing fits" in recommendation(plan_for("llama-3.1-405b", gpu="h100"))
    assert "No layout holds 5000 requests" in recommendation(plan_for("llama-3.3-70b", batch=5000))


def test_memory_adds_up_to_the_gpu() -> None:
    for candidate in plan_for("qwen3-32b").candidates:
        used = candidate.weight_bytes + candidate.activation_bytes + candidate.kv_bytes
        reserved = GPUS["h200"].memory - used
        assert 3 << 30 < reserved < 5 << 30
        assert candidate.kv_tokens * 262_144 <= max(candidate.kv_bytes, 0) * candidate.layout.gpus


def test_replicas_stand_beside_each_other_on_whole_gpus() -> None:
    plan = plan_for("llama-3.1-8b", gpus=6)
    assert {each.layout.gpus: each.replicas for each in plan.candidates} == {1: 6, 2: 3, 3: 2, 4: 1, 5: 1, 6: 1}


def test_replicas_share_the_load() -> None:
    for candidate in plan_for("llama-3.1-8b", batch=100).candidates:
        assert candidate.share == -(-100 // candidate.replicas) == candidate.requests
        assert candidate.itl is not None
        assert candidate.tokens_per_second == pytest.approx(100 / candidate.itl)


def _candidate(layout: Layout, tokens_per_second: float) -> Candidate:
    return Candidate(layout, 8 // layout.gpus, 0, 0, 1, 9, 1, 1, 1 / tokens_per_second, 1.0, tokens_per_second)


def test_of_equal_replicas_the_faster_layout_is_chosen() -> None:
    slow, fast = _candidate(Layout(1, 3), 100.0), _candidate(Layout(4, 1), 110.0)
    assert recommended([slow, fast], Demand(batch=1, context=1, prompt=1)) is fast


def test_more_gpus_are_taken_only_where_they_pay() -> None:
    demand = Demand(batch=1, context=1, prompt=1)
    small, little, much = (_candidate(Layout(tensor, 1), rate) for tensor, rate in ((1, 100.0), (2, 110.0), (4, 150.0)))
    assert recommended([small, little], demand) is small
    assert recommended([small, little, much], demand) is much


def test_without_times_memory_is_planned_all_the_same(tmp_path: Path) -> None:
    for plan in (plan_for("llama-3.3-70b", tables=tmp_path), plan_for("qwen3-8b", dtype="float32")):
        assert plan.times is None
        assert plan.without_times
        assert all(candidate.itl is None for candidate in plan.candidates)
        assert chosen(plan) is not None


def test_a_folder_needs_no_more_than_its_config(tmp_path: Path) -> None:
    write_config(tmp_path, TINY_CONFIGS["qwen3"])
    plan = plan_for(str(tmp_path), dtype="bfloat16")
    assert plan.config.architecture == "Qwen3ForCausalLM"
    assert plan.demand.context == plan.config.max_positions


def test_the_catalogue_model_can_be_planned(smollm2_path: Path) -> None:
    assert {each.layout.tensor for each in plan_for("smollm2-135m").candidates} == {1, 3}
    assert plan_for(str(smollm2_path)).candidates == plan_for("smollm2-135m").candidates


def test_the_result_is_json() -> None:
    result = json.loads(json.dumps(as_json(plan_for("llama-3.3-70b"))))
    assert result["parameters"] == 70_553_706_496
    assert result["recommended"] == {"tensor": 2, "pipeline": 1}
    assert len(result["layouts"]) == 15
    prompt_flops = result["undivided"]["prefill_flops"]
    assert 2 * 2048 * 68e9 < prompt_flops < 2 * 2048 * 75e9


def test_the_table_is_printed_with_whose_numbers_these_are(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    result = CliRunner().invoke(cli.app, ["plan", "llama-3.3-70b", "--gpus", "8", "--gpu", "h200", "--json", str(file)])
    assert result.exception is None
    text = " ".join(result.output.split())
    assert "other people's measurements" in text
    assert "Recommended: tensor 2 × pipeline 1, 4 replicas on 8 GPUs" in text
    assert json.loads(file.read_text())["gpu"] == "h200"
    assert CliRunner().invoke(cli.app, ["plan", "llama-3.3-70b", "--quiet"]).output == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gpt-5"], "known shapes are llama-3.2-1b"),
        (["Qwen/Qwen3-32B"], "known shapes are llama-3.2-1b"),
        (["llama-3.1-8b", "--gpu", "a100"], "known ones are h200, h100"),
        (["llama-3.1-8b", "--dtype", "int4"], "must be one of auto, float32"),
        (["llama-3.1-8b", "--context", "200000"], "at most 131072 tokens"),
        (["llama-3.1-8b", "--itl", "20"], "must be a duration with its unit"),
        (["llama-3.1-8b", "--tables", "absent"], "there is no folder absent"),
    ],
)
def test_a_mistake_is_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["mobula", "plan", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert said in message
    assert len(message.splitlines()) == 1


def test_a_spoilt_table_is_named(tmp_path: Path) -> None:
    for file in OUR_TABLES.glob("*.csv"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "h200_gemm.csv").write_text("in_features,out_features,1\n1,1,fast\n")
    with pytest.raises(ValueError, match=r"h200_gemm\.csv can't be read as a table"):
        plan_for("llama-3.1-8b", tables=tmp_path)
