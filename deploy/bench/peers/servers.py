"""Installs a peer's environment, and runs its server as long as it is measured."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from deploy.bench.peers.peers import Environment
from deploy.errors import UserError

POLL_SECONDS = 0.5
STOP_SECONDS = 20.0


def install(environment: Environment, folder: Path) -> Path:
    """The interpreter of the peer's own environment below `folder`, made and filled if it is not there yet."""
    home = folder / environment.name
    python, stamp = home / "bin" / "python", home / "installed"
    wanted = "\n".join(environment.install)
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    _run([sys.executable, "-m", "venv", str(home)])
    _run([str(python), "-m", "pip", "install", *environment.install])
    if environment.remove:
        _run([str(python), "-m", "pip", "uninstall", "--yes", *environment.remove])
    stamp.write_text(wanted)
    return python


def requantize(python: Path, file: Path, target: Path) -> Path:
    """`target`, made of a GGUF file if it is not there yet, by the peer's own program."""
    if not target.exists():
        _run([str(python), str(Path(__file__).with_name("requantize.py")), str(file), str(target)])
    return target


@contextmanager
def running(
    command: Sequence[str], variables: Mapping[str, str], port: int, log: Path, patience: float
) -> Iterator[str]:
    """Start a server, wait until it answers, and end it with all its processes afterwards. Its address is the result.
    Raises UserError if it ends before it answers, or does not answer in time."""
    url = f"http://127.0.0.1:{port}"
    with log.open("w") as output:
        process = subprocess.Popen(
            command, env={**os.environ, **variables}, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            _await(process, url, log, patience)
            yield url
        finally:
            _end(process)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _await(process: subprocess.Popen[bytes], url: str, log: Path, patience: float) -> None:
    deadline = time.monotonic() + patience
    with httpx.Client(base_url=url, trust_env=False) as client:
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise UserError(f"the server ended with status {process.returncode} before it answered: see {log}")
            with suppress(httpx.HTTPError):
                if client.get("/v1/models").status_code == 200:
                    return
            time.sleep(POLL_SECONDS)
    raise UserError(f"the server does not answer within {patience:g} s: see {log}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """The whole process group, which is its own: politely first."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, how)
        except ProcessLookupError:
            break
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def _run(command: Sequence[str]) -> None:
    try:
        subprocess.run(command, check=True)
    except subprocess.CalledProcessError as error:
        raise UserError(f"{' '.join(command)} ended with status {error.returncode}") from None
