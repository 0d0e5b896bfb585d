"""`mobula bench serve` from its options to its table, JSON and pictures, against a stand-in server."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deploy.bench.serve.report import described
from deploy.bench.serve.slo import Slo
from deploy.cli import app
from deploy.errors import UserError
from tests.support.openai_server import Behaviour, openai_server

TRACES = Path(__file__).parent / "traces"
QUICK = ["--requests", "8", "--output", "4", "--warmup", "2"]


def bench(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["bench", "serve", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def is_picture(file: Path) -> bool:
    width, height = struct.unpack(">II", file.read_bytes()[16:24])
    return width > 500 < height


def test_one_load(tmp_path: Path) -> None:
    with openai_server(Behaviour(gap=0.002, faults=["", "", "", "503", "cut"])) as server:
        told = bench(
            *(server.url, *QUICK, "--concurrency", "2", "--ttft", "30s"),
            *("--json", str(tmp_path / "result.json"), "--plots", str(tmp_path / "plots")),
        )
    assert "6 of 8 answered" in told
    assert "1 status 503, 1 broken stream" in told
    assert "75.0% of all requests" in told
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["asked"]["concurrency"] == 2
    assert result["summary"]["goodput"]["share"] == 0.75
    assert [len(request["events"]) for request in result["requests"] if request["error"] is None] == [4] * 6
    assert len(server.streamed) == 2 + 8
    assert is_picture(tmp_path / "plots" / "itl.png")
    assert is_picture(tmp_path / "plots" / "timeline.png")


def test_the_same_text_seed_sends_the_same_words_and_another_run_new_ones() -> None:
    prompts = []
    for arguments in (["--text-seed", "5"], ["--text-seed", "5"], []):
        with openai_server() as server:
            bench(server.url, *QUICK, "--rate", "200", "--quiet", *arguments)
        prompts.append([body["prompt"] for body in server.streamed])
    assert sorted(prompts[0]) == sorted(prompts[1])
    assert not any(prompt in prompts[0] for prompt in prompts[2])
    assert len(set(map(tuple, prompts[0]))) == len(prompts[0])


def test_a_trace_is_replayed_at_the_rate_that_was_asked_for() -> None:
    with openai_server() as server:
        told = bench(server.url, "--trace", str(TRACES / "azure.csv"), "--rate", "20", "--length-scale", "0.1")
    assert "5 of 5 answered" in told
    assert sorted(len(body["prompt"]) for body in server.streamed[-5:]) == [9, 9, 37, 40, 88]


def test_a_sweep_ends_with_the_highest_rate_that_held(tmp_path: Path) -> None:
    with openai_server(Behaviour(faults=[""] * (2 + 8 + 8) + ["503"] * 1000)) as server:
        told = bench(
            *(server.url, *QUICK, "--sweep", "--rate", "100", "--ttft", "30s"),
            *("--json", str(tmp_path / "result.json"), "--plots", str(tmp_path)),
        )
    assert "99 % of all requests were within TTFT 30000 ms: 200 requests/s" in told
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["highest_rate"] == 200
    assert [step["holds"] for step in result["steps"]][:3] == [True, True, False]
    assert is_picture(tmp_path / "curve.png")


def test_a_comparison_sends_both_the_same_load_in_turns(tmp_path: Path) -> None:
    with openai_server(Behaviour(first=0.001)) as fast, openai_server(Behaviour(first=0.1)) as slow:
        told = bench(
            *(fast.url, "--compare", slow.url, "--rounds", "4", "--requests", "16", "--input", "5-50", "--output", "3"),
            *("--warmup", "0", "--rate", "50", "--json", str(tmp_path / "result.json"), "--plots", str(tmp_path)),
        )
    assert "A ÷ B" in told
    ratios = {ratio["metric"]: ratio for ratio in json.loads((tmp_path / "result.json").read_text())["ratios"]}
    assert ratios["TTFT p50"]["high"] < 1
    lengths = [sorted(len(body["prompt"]) for body in server.streamed) for server in (fast, slow)]
    assert lengths[0] == lengths[1]
    assert len(lengths[0]) == 16
    assert not set(map(str, fast.streamed)) & set(map(str, slow.streamed))
    assert is_picture(tmp_path / "itl.png")


def test_a_run_in_which_everything_failed_is_told_like_any_other(tmp_path: Path) -> None:
    with openai_server(Behaviour(faults=["503"] * 100)) as server:
        told = bench(server.url, *QUICK, "--ttft", "1s", "--plots", str(tmp_path))
    assert "0 of 8 answered" in told
    assert "0.0% of all requests" in told
    assert is_picture(tmp_path / "timeline.png")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rate", "1", "--concurrency", "1"], "give one of them"),
        (["--requests", "1", "--duration", "1s", "--rate", "1"], "give one of the two"),
        (["--duration", "1s"], "needs a --rate"),
        (["--duration", "1", "--rate", "1"], "--duration is '1', but must be a duration"),
        (["--sweep"], "needs an objective"),
        (["--sweep", "--ttft", "1s", "--compare", "http://127.0.0.1:9"], "give one of the two"),
        (["--input", "many"], "'many' is no length"),
        (["--trace", "absent.csv"], "there is no trace absent.csv"),
        (["--lengths", "absent.csv"], "there is no file absent.csv"),
        (["--trace", str(TRACES / "azure.csv"), "--requests", "3"], "--limit"),
        (["--json", "absent/folder/file"], "there is no such folder"),
        ([], "no server answers at http://127.0.0.1:9"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said.replace("[", "\\[")) as raised:
        bench("http://127.0.0.1:9", *arguments)
    assert "\n" not in str(raised.value)


def test_what_is_no_address_is_refused() -> None:
    for url in ("nonsense", "ftp://127.0.0.1", "http://", "http://127.0.0.1:99999", "http://127.0.0.1:port"):
        with pytest.raises(UserError, match="no address"):
            bench(url)


def test_objectives_are_told_in_milliseconds() -> None:
    assert described(Slo(ttft=0.5, itl=0.05)) == "TTFT 500 ms, ITL 50 ms"
