"""`mobula serve` as a person uses it: start, ask, Ctrl-C; and what goes wrong before anything starts."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time

import httpx
import pytest
import yaml

pytestmark = pytest.mark.slow


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def mobula(*arguments, **options) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "deploy.cli", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def processes_with(mark: str) -> list[str]:
    """Command lines of the live processes whose environment holds `mark`."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ") as environment, open(f"/proc/{pid}/cmdline") as command:
                if mark in environment.read():
                    found.append(command.read().replace("\0", " "))
        except OSError:
            continue
    return found


def test_start_ask_and_leave_nothing_behind(smollm2_path, tmp_path):
    port, mark = free_port(), f"MOBULA_TEST={tmp_path}"
    config = {
        "models": [{"id": "smollm2", "source": str(smollm2_path), "engine": {"kv_cache_memory": "128MiB"}}],
        "gateway": {"port": port},
    }
    (tmp_path / "mobula.yaml").write_text(yaml.safe_dump(config))
    result = tmp_path / "result.json"
    environment = os.environ | dict([mark.split("=", 1)])
    server = mobula("serve", tmp_path / "mobula.yaml", "--json", result, env=environment, start_new_session=True)
    try:
        assert server.stdout is not None
        lines = []
        for line in server.stdout:
            lines.append(line)
            if line.startswith("Press Ctrl-C"):
                break
        assert any(f"at http://127.0.0.1:{port}/v1" in line for line in lines), "".join(lines)
        stages = {stage["name"]: stage["seconds"] for stage in json.loads(result.read_text())["stages"]}
        assert {"start Ray", "start the models and the gateway", "smollm2: load the weights"} <= stages.keys()
        body = {"model": "smollm2", "prompt": "One, two, three,", "max_tokens": 4, "temperature": 0}
        answer = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=60).json()
        assert "four" in answer["choices"][0]["text"]
        taken = mobula("serve", smollm2_path, "--port", port)
        _, errors = taken.communicate(timeout=60)
        assert taken.returncode == 2
        assert errors.startswith(f"error: port {port} on 127.0.0.1 is in use")
    finally:
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=60)
    assert server.returncode == 0
    deadline = time.monotonic() + 10
    while (left := processes_with(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []


def test_a_broken_model_file_ends_it_within_seconds(smollm2_path, tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(smollm2_path.read_bytes()[:1_000_000])
    started = time.monotonic()
    server = mobula("serve", broken, "--port", free_port())
    _, errors = server.communicate(timeout=60)
    assert server.returncode == 2
    assert time.monotonic() - started < 20
    assert "broken.gguf" in errors
    assert "Traceback" not in errors
