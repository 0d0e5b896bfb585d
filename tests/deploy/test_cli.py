"""The command line: what it prints, its exit status, and how long a mistake takes to be told."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cluster.gateway.auth import KeyRing, parse_key_lines
from deploy import cli, serve
from deploy.config import MobulaConfig

SECONDS_TO_TELL_A_MISTAKE = 10.0  # far above what it takes, far below the start of Ray and a model


def mobula(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command as a person would."""
    command = [str(Path(sys.executable).parent / "mobula"), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def good(tmp_path: Path, smollm2_path: Path) -> Path:
    file = tmp_path / "good.yaml"
    file.write_text(f"models:\n- id: small\n  source: {smollm2_path}\ngateway:\n  port: 8123\n")
    return file


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    file = tmp_path / "bad.yaml"
    file.write_text("models:\n- id: small\n  source: smollm2-135m\n  engine:\n    max_model_length: 4096\n")
    return file


def test_a_bad_configuration_gets_the_same_verdict_from_check_and_serve(bad: Path) -> None:
    started = time.monotonic()
    results = [mobula("check", str(bad)), mobula("serve", str(bad))]
    seconds = time.monotonic() - started

    assert [result.returncode for result in results] == [2, 2]
    assert results[0].stderr == results[1].stderr
    assert "line 5: models[0].engine.max_model_length is 4096" in results[0].stderr
    assert "did you mean max_model_len?" in results[0].stderr
    assert seconds < 2 * SECONDS_TO_TELL_A_MISTAKE


def test_a_broken_model_stops_check_and_serve_before_anything_starts(tmp_path: Path, smollm2_path: Path) -> None:
    (tmp_path / "cut.gguf").write_bytes(smollm2_path.read_bytes()[:1_000_000])
    (tmp_path / "mobula.yaml").write_text("models: [{id: cut, source: cut.gguf}]")
    for arguments in (["check", "mobula.yaml"], ["serve", "mobula.yaml"], ["serve", "cut.gguf"]):
        started = time.monotonic()
        result = mobula(*arguments, cwd=tmp_path)
        assert result.returncode == 2
        assert len(result.stderr.splitlines()) == 1
        assert "the model cut cannot be served" in result.stderr
        assert "cut.gguf" in result.stderr
        assert time.monotonic() - started < SECONDS_TO_TELL_A_MISTAKE


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve", "smolm2-135m"], "did you mean smollm2-135m?"),
        (["serve", "absent.yaml"], "there is no configuration file absent.yaml"),
        (["serve", "absent.gguf"], "there is no file or folder"),
        (["serve", "--host", "192.0.2.1"], "cannot listen on 192.0.2.1"),
        (["key", "two words"], "'two words' is no name for a key"),
        (["check", "absent.yaml"], "there is no configuration file absent.yaml"),
        (["models", "--json", "absent/folder/file"], "cannot be written to absent/folder/file"),
        (["chat", "--url", "http://127.0.0.1:9"], "no server answers at http://127.0.0.1:9/v1"),
        (["chat", "--url", "nonsense"], "nonsense"),
    ],
)
def test_a_mistake_is_one_sentence_and_status_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["mobula", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert said in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("arguments", [["serv"], ["serve", "--prot", "1"], ["serve", "--port", "99999"], ["check"]])
def test_a_wrong_command_line_has_status_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(cli.app, arguments).exit_code == 2


def test_check_says_that_a_good_file_is_good(good: Path, tmp_path: Path) -> None:
    verdict = tmp_path / "verdict.json"
    result = CliRunner().invoke(cli.app, ["check", str(good), "--json", str(verdict)])
    assert (result.exit_code, result.exception) == (0, None)
    assert "small: opens, " in result.output
    assert json.loads(verdict.read_text())["ok"] is True
    assert json.loads(verdict.read_text())["models"][0]["config"]["num_layers"] == 30


def test_check_writes_its_refusal_too(bad: Path, tmp_path: Path) -> None:
    verdict = tmp_path / "verdict.json"
    CliRunner().invoke(cli.app, ["check", str(bad), "--json", str(verdict)])
    assert json.loads(verdict.read_text())["ok"] is False
    assert "max_model_length" in json.loads(verdict.read_text())["error"]


def test_quiet_means_quiet(good: Path) -> None:
    for arguments in (["check", str(good), "--quiet"], ["models", "-q"]):
        assert CliRunner().invoke(cli.app, arguments).output == ""


def test_models_lists_the_catalogue_and_what_is_cached(
    tmp_path: Path, smollm2_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = tmp_path / "models.json"
    output = CliRunner().invoke(cli.app, ["models", "--json", str(listing)]).output
    assert "smollm2-135m" in output
    assert "98 MB" in output
    assert "Apache-2.0" in output
    assert json.loads(listing.read_text())["models"][0]["cached"] is True
    monkeypatch.setenv("MOBULA_CACHE", str(tmp_path))
    assert CliRunner().invoke(cli.app, ["models"]).output.split()[-1] == "no"


def test_the_version() -> None:
    result = mobula("--version")
    assert (result.returncode, result.stdout.split()[0]) == (0, "mobula")


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[MobulaConfig]:
    """The configurations that `serve` is called with, instead of serving them."""
    configs: list[MobulaConfig] = []
    monkeypatch.setattr(serve, "serve", lambda config, *_: configs.append(config))
    return configs


def test_serve_takes_the_file_and_options_win(good: Path, served: list[MobulaConfig]) -> None:
    for options in ([], ["--port", "8124", "--host", "localhost"]):
        assert CliRunner().invoke(cli.app, ["serve", str(good), *options]).exception is None
    assert [(config.gateway.host, config.gateway.port) for config in served] == [
        ("127.0.0.1", 8123),
        ("localhost", 8124),
    ]
    assert [config.models[0].id for config in served] == ["small", "small"]


def test_serve_takes_the_default_model(served: list[MobulaConfig]) -> None:
    assert CliRunner().invoke(cli.app, ["serve", "--port", "8125"]).exception is None
    assert [config.models[0].source for config in served] == ["smollm2-135m"]


def test_serve_will_not_start_beside_a_folder_that_shadows_ours(tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster/__init__.py").touch()
    result = mobula("serve", cwd=tmp_path)
    assert result.returncode == 2
    assert "would take the place of Mobula's own package cluster" in result.stderr


def test_a_key_opens_what_its_line_guards() -> None:
    result = CliRunner().invoke(cli.app, ["key", "alice"])
    (known,) = parse_key_lines(result.stdout)
    secret = result.stderr.split()[-1]
    assert KeyRing([known]).holder(secret.encode()) == "alice"
    assert secret not in result.stdout


def test_keys_that_cannot_be_read_stop_check_and_serve(good: Path) -> None:
    good.write_text(good.read_text() + "  auth: {keys_file: absent.txt}\n")
    results = [mobula("check", str(good)), mobula("serve", str(good))]
    assert [result.returncode for result in results] == [2, 2]
    assert results[0].stderr == results[1].stderr
    assert "absent.txt cannot be read" in results[0].stderr
