"""`mobula simulate` from its options to its file."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from deploy.cli import app
from deploy.errors import UserError

SMALL = ["simulate", "--load", "chats", "--rate", "8", "--seconds", "15", "--replicas", "3", "--blocks", "2000"]


def test_it_writes_figures_of_each_policy_and_a_picture(tmp_path):
    options = [*SMALL, "--policies", "round_robin,mobula", "--json", tmp_path / "r.json", "--plot", tmp_path / "p.png"]
    ran = CliRunner().invoke(app, [str(option) for option in options], catch_exceptions=False)
    result = json.loads((tmp_path / "r.json").read_text())
    assert [each["policy"] for each in result["policies"]] == ["round_robin", "mobula"]
    wanted = {"reuse", "ideal_reuse", "ttft_p50_ms", "ttft_p99_ms", "itl_p99_ms", "goodput", "imbalance"}
    assert all(wanted <= each.keys() for each in result["policies"])
    assert result["replicas"] == 3
    assert 0 < result["policies"][1]["reuse"] <= result["policies"][1]["ideal_reuse"]
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    assert "mobula" in ran.stdout


def test_a_sweep_finds_the_rate_that_is_served_in_time(tmp_path):
    options = [*SMALL, "--policies", "mobula", "--sweep", "--quiet", "--json", str(tmp_path / "r.json")]
    CliRunner().invoke(app, options, catch_exceptions=False)
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["policies"][0]["highest_requests_per_second"] > 8


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["simulate"], "give either --trace FILE or --load NAME"),
        ([*SMALL, "--policies", "best"], "there is no policy 'best'"),
        (["simulate", "--load", "x"], "there is no load 'x'"),
    ],
)
def test_mistakes_are_told(options, told):
    with pytest.raises(UserError, match=told):
        CliRunner().invoke(app, options, catch_exceptions=False)
