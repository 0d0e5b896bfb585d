"""The router's benchmark asks both indexes the same, and the answers are right."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.bench.router import OurIndex, _figures, as_json, lines, run
from deploy.bench.router_load import RUN_BLOCKS, Load, measure, split
from deploy.errors import UserError

TINY = Load(replicas=20, blocks=12_800, prompt_blocks=64, depths=4, prompts=2, matches=5)


def test_every_question_finds_the_holders_that_it_is_about():
    figures = measure(OurIndex(TINY.replicas, 20_000), TINY)
    found = [figures.match_few, figures.match_cut, figures.match_all, figures.match_worst, figures.match_unknown]
    assert [latency.found for latency in found] == [4, 4, 20, 20, 0]
    assert all(0 < latency.p50 <= latency.p99 <= latency.max for latency in found)
    assert min(rate.per_second for rate in (figures.stored, figures.stored_singly, figures.removed)) > 0


class Recorded(OurIndex):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__(TINY.replicas, 20_000)
        self.stored_runs: list[tuple[int, bytes]] = []
        self.removed_runs: list[tuple[int, bytes]] = []

    def stored(self, replica, raw):
        self.stored_runs.append((replica, raw))
        return super().stored(replica, raw)

    def removed(self, replica, raw):
        self.removed_runs.append((replica, raw))
        return super().removed(replica, raw)


def test_what_is_removed_was_stored_and_goes_from_its_end():
    index = Recorded()
    measure(index, TINY)
    runs = [(replica, raw) for replica, raw in index.removed_runs if len(split(raw)) == RUN_BLOCKS]
    assert len(runs) >= TINY.blocks // RUN_BLOCKS // 10
    for replica, raw in runs:
        assert (replica, b"".join(reversed(split(raw)))) in index.stored_runs


def test_without_another_system_ours_is_told_alone():
    result = run(TINY, None)
    assert json.loads(json.dumps(as_json(result)))["dynamo"] is None
    assert "match, 4 holders at 4 depths" in "\n".join(lines(result))


def test_another_system_stands_beside_ours():
    result = run(TINY, None)
    told = {**as_json(result)["ours"], "bytes_per_block": 123.0}
    both = replace(result, dynamo=_figures(json.loads(json.dumps(told))))
    assert "| 123 |" in list(lines(both))[4]


@pytest.mark.parametrize("python", [sys.executable, "/no/such/python"])
def test_an_interpreter_without_the_package_is_refused_by_name(python):
    with pytest.raises(UserError, match=r"--dynamo-python .*(dynamo|No such file)"):
        run(TINY, Path(python))
