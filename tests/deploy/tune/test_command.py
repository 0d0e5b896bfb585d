"""`mobula tune` from its options to a file that `mobula check` accepts, on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deploy.cli import app
from deploy.errors import UserError
from tests.support.checkpoints import write_tiny_with_small_vocabulary

QUICK = ["--duration", "100ms", "--input", "8-24", "--output", "4", "--threads", "1"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_with_small_vocabulary(tmp_path_factory.mktemp("tiny"))


def mobula(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_file_is_written_that_check_accepts(tiny: Path, tmp_path: Path) -> None:
    file, record = tmp_path / "tuned.yaml", tmp_path / "result.json"
    told = mobula(
        *("tune", str(tiny), *QUICK, "--runs", "3", "--rate", "40", "--ttft-p99", "30s", "--itl-p99", "30s"),
        *("--write", str(file), "--json", str(record)),
    )
    assert "holds 160 requests/s within the objectives" in told
    assert mobula("check", str(file)).endswith("is valid\n")
    assert [run["rate"] for run in json.loads(record.read_text())["runs"]] == [40, 80, 160]


def test_mistakes_are_told_before_anything_is_run(tiny: Path, tmp_path: Path) -> None:
    place = ["--write", str(tmp_path / "tuned.yaml")]
    with pytest.raises(UserError, match=r"--itl-p99 is '50'.*duration"):
        mobula("tune", str(tiny), "--itl-p99", "50", *place)
    with pytest.raises(UserError, match="is no length"):
        mobula("tune", str(tiny), "--output", "few", *place)
    with pytest.raises(UserError, match="cannot serve the load"):
        mobula("tune", str(tiny), *QUICK, "--input", "4000", *place)
    assert not (tmp_path / "tuned.yaml").exists()
