"""The whole comparison, with a stand-in for the servers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from deploy.bench.peers import __main__ as comparison
from deploy.bench.peers.peers import Environment, Peer, Place
from deploy.bench.peers.scenarios import CAPACITY, open_loops

STAND_IN = """
import asyncio, sys
from tests.support.openai_server import Behaviour, OpenAIServer

async def main():
    server = OpenAIServer(Behaviour(gap=float(sys.argv[2])))
    async with await asyncio.start_server(server.serve, "127.0.0.1", int(sys.argv[1])) as listener:
        await listener.serve_forever()

asyncio.run(main())
"""


def stand_in(gap: float):
    return lambda place, port: [sys.executable, "-c", STAND_IN, str(port), str(gap)]


def broken(place: Place, port: int) -> list[str]:
    return [sys.executable, "-c", "raise SystemExit(3)"]


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment = Environment("theirs", ())
    peers = (
        Peer("ours", "16 bits", None, stand_in(0.001)),
        Peer("slow", "16 bits", environment, stand_in(0.02)),
        Peer("broken", "16 bits", environment, broken),
    )
    monkeypatch.setattr(comparison, "PEERS", peers)
    monkeypatch.setattr(comparison, "CLOSED", (CAPACITY,))
    monkeypatch.setattr(comparison, "open_loops", lambda *asked: open_loops(*asked)[-1:])
    monkeypatch.setattr(comparison, "fetch", lambda name: tmp_path / "model.gguf")
    monkeypatch.setattr(comparison, "convert", lambda file, folder: folder)
    monkeypatch.setattr(comparison, "install", lambda environment, folder: Path(sys.executable))


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["peers", *arguments])
    comparison.main()


@pytest.mark.slow
@pytest.mark.usefixtures("peers")
def test_every_server_is_measured_alone_and_ours_is_held_against_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, str(tmp_path), "--quick", "--rounds", "1", "--threads", "1")
    told = capsys.readouterr().out
    assert "round 1 of 1, broken: the server ended with status 3" in told
    assert "| scenario | metric | ours | slow | broken | ours ÷ best other |" in told
    (capacity,) = [line for line in told.splitlines() if line.startswith("| capacity |")]
    assert float(capacity.split("|")[-2]) > 1
    asked = json.loads((tmp_path / "quick" / "slow" / "capacity-80.1.json").read_text())["asked"]
    rate = json.loads((tmp_path / "quick" / "slow" / "capacity.1.json").read_text())["summary"]["request_rate"]
    assert asked["rate"] == pytest.approx(0.8 * rate, rel=1e-3)
    assert not (tmp_path / "results").exists()


@pytest.mark.usefixtures("peers")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([str(comparison.REPOSITORY / "peers")], "lies within the repository"),
        (["/tmp/peers", "--only", "ours|vllm"], "'vllm' is no peer: there are ours, slow, broken"),
    ],
)
def test_mistakes_are_told_before_anything_starts(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(monkeypatch, *arguments)
    assert message in capsys.readouterr().err
