"""`mobula bench engine` from its options to its table and JSON, on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deploy.bench.engine import limits
from deploy.cli import app
from deploy.errors import UserError
from tests.support.checkpoints import write_tiny_with_small_vocabulary

QUICK = ["--rounds", "1", "--requests", "4", "--input", "8-24", "--output", "4", "--prefix", "64", "--sharers", "3"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_with_small_vocabulary(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(autouse=True)
def quick_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "index0").mkdir()
    (tmp_path / "index0" / "size").write_text("512K\n")
    monkeypatch.setattr(limits, "CACHES", tmp_path)
    monkeypatch.setattr(limits, "SECONDS_A_TRY", 1e-6)


def bench(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["bench", "engine", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_every_phase_is_told_with_its_share(tiny: Path, tmp_path: Path) -> None:
    told = bench(str(tiny), *QUICK, "--threads", "1", "--dtype", "float32", "--json", str(tmp_path / "result.json"))
    assert "· 1 thread" in told
    for phase in ("offline", "prefill", "single stream", "shared prefix"):
        assert phase in told
    result = json.loads((tmp_path / "result.json").read_text())
    readings = {(reading["phase"], reading["name"]): reading for reading in result["readings"]}
    assert 0 < readings["single stream", "ITL"]["share_of_limit"] < 1
    assert readings["shared prefix", "reused"]["value"] == pytest.approx(100 * 2 * 64 / (3 * 80))
    assert result["ablated"] == {}


@pytest.mark.slow
def test_ablations_are_held_against_the_whole(tiny: Path, tmp_path: Path) -> None:
    told = bench(str(tiny), *QUICK, "--threads", "1", "--ablate", "--json", str(tmp_path / "result.json"))
    assert "without one mechanism" in told
    result = json.loads((tmp_path / "result.json").read_text())
    assert list(result["ablated"])[-1] == "nothing"
    without = {reading["name"]: reading["value"] for reading in result["ablated"]["prefix caching"]}
    assert without["reused"] == 0


def test_a_configuration_file_says_how_the_engine_runs(tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text(f"models: [{{id: tiny, source: {tiny}, engine: {{prefix_caching: false, threads: 1}}}}]")
    told = bench(str(file), *QUICK, "--dtype", "bfloat16")
    assert "tiny · bfloat16 · 1 thread" in told
    assert "0.0 %" in told


def test_mistakes_are_told_before_anything_is_measured(tiny: Path) -> None:
    with pytest.raises(UserError, match="is no length"):
        bench(str(tiny), "--input", "many")
    with pytest.raises(UserError, match="cannot be written"):
        bench(str(tiny), "--json", "/nowhere/result.json")
    with pytest.raises(UserError, match=r"cannot serve the load.*limit of 2048 tokens"):
        bench(str(tiny), *QUICK, "--input", "3000", "--quiet")
