"""Tuning, on made-up engines whose limits are known, and the file that it ends in."""

from __future__ import annotations

from array import array
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from deploy.bench.serve.generator import Run
from deploy.bench.serve.measure import Summary, summarize
from deploy.bench.serve.outcome import Outcome
from deploy.config import config_for_model, load_config, to_engine_config
from deploy.errors import UserError
from deploy.tune.report import as_json, print_tuned, told, verdict
from deploy.tune.settings import DEFAULT, SPACE, Setting, setting
from deploy.tune.trials import Objectives
from deploy.tune.tuning import Tried, Tuned, tune
from deploy.tune.written import check_place, configuration
from replicas.config import EngineConfig

OBJECTIVES = Objectives(ttft_p99=0.5, itl_p99=0.05)
START = setting(DEFAULT)


def summary(ttft: float = 0.1, itl: float = 0.01) -> Summary:
    outcome = Outcome(0.0, 0.0, ttft + itl, array("d", [ttft, ttft + itl]), 10, 0, 2)
    return summarize(Run([outcome] * 20, 10.0, 0.0), OBJECTIVES.each)


def tuned_over(capacity: dict[Setting, float], otherwise: float, most: int = 100) -> Tuned:
    """Above its capacity a setting's first tokens come late."""

    def run(of: Setting, rate: float) -> Summary:
        return summary(ttft=0.1 if rate <= capacity.get(of, otherwise) else 3.0)

    return tune(run, OBJECTIVES, 1.0, most, lambda tried: None)


def test_an_objective_is_kept_by_99_of_100_of_all_gaps_and_first_tokens() -> None:
    assert OBJECTIVES.hold(summary())
    assert not OBJECTIVES.hold(summary(ttft=0.6))
    assert not OBJECTIVES.hold(summary(itl=0.06))


def test_a_setting_becomes_an_engines_configuration() -> None:
    config = Setting(512, 16, 0.7).applied(EngineConfig(dtype="bfloat16"), 0.05)
    assert (config.max_batched_tokens, config.max_running, config.dtype) == (512, 16, "bfloat16")
    assert config.itl_objective == pytest.approx(0.035)
    assert Setting(512, 16, None).applied(config, 0.05).itl_objective is None


def test_every_point_of_the_space_makes_a_valid_configuration_or_is_left_out() -> None:
    for axis in range(3):
        for direction in (1, -1):
            for point in SPACE.beyond((0, 4, 2), axis, direction):
                setting(point).applied(EngineConfig(), 0.05)
    assert not SPACE.valid((0, 7, 2))


def test_the_search_starts_from_what_serve_does_by_itself() -> None:
    defaults = EngineConfig()
    assert setting(DEFAULT) == Setting(defaults.max_batched_tokens, defaults.max_running, 1.0)


def test_the_better_setting_is_found_and_told_beside_the_default() -> None:
    better = Setting(1024, START.max_running, 1.0)
    tuned = tuned_over({better: 8.0}, otherwise=3.0)
    assert tuned.setting == better
    assert tuned.rate == pytest.approx(8.0, rel=0.1)
    assert tuned.default_rate == pytest.approx(3.0, rel=0.1)
    assert "The best setting, 1024 tokens a step" in verdict(tuned)
    assert [tried.rate for tried in tuned.curve(START)] == sorted(tried.rate for tried in tuned.curve(START))


def test_the_default_can_be_the_best() -> None:
    tuned = tuned_over({START: 8.0}, otherwise=3.0)
    assert tuned.setting == START
    assert "The default setting is the best" in verdict(tuned)


def test_no_more_runs_than_were_allowed() -> None:
    assert len(tuned_over({}, otherwise=1e9, most=7).runs) == 7


def test_a_machine_that_is_too_slow_is_told_so() -> None:
    with pytest.raises(UserError, match="too slow"):
        tuned_over({}, otherwise=0.0)


def test_results_are_printed_and_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    tuned = tuned_over({Setting(1024, START.max_running, 1.0): 8.0}, otherwise=3.0)
    print_tuned(tuned)
    printed = capsys.readouterr().out
    assert "default  2048 tokens a step" in printed
    assert "best  1024 tokens a step" in printed
    record = as_json(tuned, {"model": "m"})
    assert record["best"]["max_batched_tokens"] == 1024
    assert len(record["runs"]) == len(tuned.runs)
    assert "run 1 of at most 30" in told(Tried(1, START, 1.0, True, summary()), 30)


@pytest.mark.parametrize("share", [None, 1.0, 0.35])
def test_the_file_is_what_serve_reads(tmp_path: Path, share: float | None) -> None:
    section = config_for_model("smollm2-135m").models[0]
    tuned = Setting(512, 16, share)
    file = tmp_path / "tuned.yaml"
    file.write_text(
        configuration(
            section, EngineConfig(threads=2, quantization="int8"), tuned, OBJECTIVES, "It holds 3 requests/s."
        )
    )
    engine = to_engine_config(load_config(file).models[0])
    expected = tuned.applied(EngineConfig(threads=2, quantization="int8"), OBJECTIVES.itl_p99)
    assert replace(engine, itl_objective=None) == replace(expected, itl_objective=None)
    assert engine.itl_objective == pytest.approx(expected.itl_objective)
    assert file.read_text().startswith("# It holds 3 requests/s.\n")
    assert set(yaml.safe_load(file.read_text())["models"][0]["engine"]) == {
        "max_batched_tokens",
        "max_running",
        "threads",
        "quantization",
    }


def test_a_file_that_is_there_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("mine")
    with pytest.raises(UserError, match="exists already"):
        check_place(tmp_path / "mine.yaml")
    with pytest.raises(UserError, match="no such folder"):
        check_place(tmp_path / "none" / "mine.yaml")
    check_place(tmp_path / "new.yaml")
