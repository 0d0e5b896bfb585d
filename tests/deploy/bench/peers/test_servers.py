"""Servers run as long as they are measured, and no longer."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import httpx
import pytest
from typer.main import get_command

from deploy.bench.peers.peers import PEERS, Environment, Place
from deploy.bench.peers.scenarios import CLOSED, open_loops
from deploy.bench.peers.servers import free_port, install, requantize, running
from deploy.cli import app
from deploy.errors import UserError

SERVER = """
import http.server, os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(str(child.pid).encode())
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def is_alive(pid: int) -> bool:
    """A zombie that nobody collects is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_server_answers_while_it_is_measured_and_ends_with_all_its_processes(tmp_path: Path) -> None:
    port = free_port()
    with running([sys.executable, "-c", SERVER, str(port)], {}, port, tmp_path / "log", 60.0) as url:
        child = int(httpx.get(f"{url}/v1/models").text)
        assert is_alive(child)
    assert not is_alive(child)
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)


def test_a_server_that_ends_at_once_is_told_with_its_log(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('no such model'); raise SystemExit(3)"]
    with (
        pytest.raises(UserError, match="ended with status 3"),
        running(command, {}, free_port(), tmp_path / "log", 60.0),
    ):
        pass
    assert (tmp_path / "log").read_text() == "no such model\n"


def test_a_server_that_never_answers_is_ended(tmp_path: Path) -> None:
    code = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
    command = [sys.executable, "-c", code, str(tmp_path / "pid")]
    with (
        pytest.raises(UserError, match="does not answer within 2 s"),
        running(command, {}, free_port(), tmp_path / "log", 2.0),
    ):
        pass
    assert not is_alive(int((tmp_path / "pid").read_text()))


def test_variables_reach_the_server(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import os; print(os.environ['OMP_NUM_THREADS'])"]
    variables = PEERS[0].environment_variables(3)
    with pytest.raises(UserError, match="ended with status 0"), running(command, variables, 1, tmp_path / "log", 60.0):
        pass
    assert (tmp_path / "log").read_text() == "3\n"
    assert os.environ.get("OMP_NUM_THREADS") != "3"


@pytest.mark.slow
def test_an_environment_is_made_once(tmp_path: Path) -> None:
    environment = Environment("own", ("pip",))
    python = install(environment, tmp_path)
    assert python.is_relative_to(tmp_path / "own")
    made = (tmp_path / "own" / "installed").stat().st_mtime_ns
    assert install(environment, tmp_path) == python
    assert (tmp_path / "own" / "installed").stat().st_mtime_ns == made


@pytest.mark.parametrize("scenario", [*CLOSED, *open_loops(3.0, 60)], ids=lambda scenario: scenario.name)
def test_every_scenario_is_what_the_load_generator_understands(scenario) -> None:
    serve = get_command(app).commands["bench"].commands["serve"]
    with serve.make_context("serve", ["http://127.0.0.1:1", *scenario.arguments]) as context:
        assert context.params["requests"] or context.params["duration"]
    with serve.make_context("serve", ["http://127.0.0.1:1", *scenario.small().arguments]) as context:
        assert context.params["requests"] == 4
        assert context.params["duration"] is None


def test_every_command_names_port_and_model(tmp_path: Path) -> None:
    place = Place(tmp_path / "bin" / "python", Path("m.gguf"), Path("folder"), Path("c.yaml"), 2)
    for peer in PEERS:
        command = peer.command(place, 4321)
        assert "4321" in command, peer.name
        assert {"m.gguf", "folder", "c.yaml"} & set(command), peer.name
        assert (peer.environment is None) == (command[0] == sys.executable), peer.name


def test_no_environment_lets_pip_choose_a_torch() -> None:
    for environment in {peer.environment for peer in PEERS if peer.environment}:
        assert all("==" in requirement for requirement in environment.install)
        assert environment.name == "llama-cpp" or "torch==2.13.0" in environment.install


def test_a_file_is_requantized_once_by_the_peers_own_program(tmp_path: Path) -> None:
    """A stand-in for its interpreter writes what it was called with."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$1 $2" >> "$3"\n')
    python.chmod(0o755)
    target = tmp_path / "q4.gguf"
    for _ in range(2):
        assert requantize(python, Path("m.gguf"), target) == target
    program, source = target.read_text().split()
    assert Path(program).name == "requantize.py"
    assert Path(program).exists()
    assert source == "m.gguf"
