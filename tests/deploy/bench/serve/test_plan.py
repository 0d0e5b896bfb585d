"""The plan of a run: arrivals, lengths, traces and words, all decided by seeds before anything is sent."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from deploy.bench.serve.arrivals import at_rate, faster, gamma_arrivals
from deploy.bench.serve.lengths import Lengths, Span, UniformLengths, read_lengths
from deploy.bench.serve.load import FEWEST_REQUESTS, Load, Replay, Synthetic
from deploy.bench.serve.traces import read_trace
from deploy.bench.serve.words import FIRST_ID, LAST_ID, WORDS, text, token_ids
from deploy.bench.serve.workload import Conversation, Piece, Shape

TRACES = Path(__file__).parent / "traces"
FIXED = UniformLengths(Span(200, 200), Span(64, 64))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def synthetic(rate: float | None = 2.0, requests: int | None = 12, seed: int = 0, **shape) -> Synthetic:
    return Synthetic(Shape(shape.pop("lengths", FIXED), **shape), requests, None, rate, 1.0, (seed,))


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_mean_and_variation_that_were_asked_for(burstiness: float) -> None:
    gaps = np.diff(gamma_arrivals(40_000, 5.0, burstiness, rng()))
    assert gaps.mean() == pytest.approx(1 / 5, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.03)


def test_poisson_gaps_are_exponential() -> None:
    gaps = np.diff(gamma_arrivals(40_000, 5.0, 1.0, rng()))
    for seconds in (0.05, 0.2, 0.6):
        assert (gaps > seconds).mean() == pytest.approx(np.exp(-5 * seconds), abs=0.01)


def test_a_seed_decides_times_and_lengths_but_not_words() -> None:
    load = synthetic(lengths=UniformLengths(Span(32, 512), Span(8, 64)))
    one, same, other = load.planned((1, 1)), load.planned((1, 1)), load.planned((1, 2))
    assert one == same
    assert [(each.start, each.turns[0].prompt_tokens) for each in one] == [
        (each.start, each.turns[0].prompt_tokens) for each in other
    ]
    assert token_ids(one[0].turns[0].prompt) != token_ids(other[0].turns[0].prompt)
    assert [each.start for each in one] != [each.start for each in synthetic(seed=1).planned((1, 1))]


def test_uniform_lengths_reach_both_ends() -> None:
    drawn = UniformLengths(Span.parse("3-5"), Span.parse("7")).draw(200, rng())
    assert {each.prompt for each in drawn} == {3, 4, 5}
    assert {each.output for each in drawn} == {7}


@pytest.mark.parametrize("text", ["", "0", "5-3", "-3", "3-", "many", "1.5"])
def test_what_is_no_length_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="such as 200"):
        Span.parse(text)


def test_lengths_of_a_file_are_drawn_in_pairs() -> None:
    observed = {Lengths(3772, 54), Lengths(2015, 156), Lengths(3858, 133), Lengths(2509, 79)}
    assert set(read_lengths(TRACES / "lengths.csv").draw(100, rng())) == observed
    assert Lengths(187, 22) in set(read_lengths(TRACES / "azure.csv", 0.5).draw(100, rng()))


def test_reads_a_mooncake_trace() -> None:
    rows = read_trace(TRACES / "mooncake.jsonl")
    assert len(rows) == 6
    assert rows[0].prompt_tokens == 6758
    assert rows[0].output_tokens == 500
    assert rows[0].blocks == tuple(range(14))
    assert [row.at for row in rows] == [0, 0, 9, 9, 9, 9]


def test_reads_an_azure_trace() -> None:
    rows = read_trace(TRACES / "azure.csv", limit=3)
    assert [(row.prompt_tokens, row.output_tokens) for row in rows] == [(374, 44), (396, 109), (879, 55)]
    assert [row.at for row in rows] == pytest.approx([0, 4.314579, 4.541877])


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", "{}", "a.jsonl, line 1"),
        ("a.jsonl", "", "no rows"),
        ("a.csv", "TIMESTAMP,ContextTokens\n", "no column GeneratedTokens"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n", "a.csv, line 2"),
        ("a.parquet", "", "no trace"),
    ],
)
def test_what_is_no_trace_is_refused_by_name(tmp_path: Path, name: str, content: str, said: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=said):
        read_trace(tmp_path / name)


def test_time_is_scaled() -> None:
    assert faster([0, 1, 4], 2) == [0, 0.5, 2]
    assert at_rate([0, 1, 4], 1) == [0, 0.5, 2]  # two gaps in two seconds
    assert at_rate([0, 0], 1) == [0, 0]


def test_a_replay_keeps_the_shared_blocks_and_scales_the_lengths() -> None:
    first, second, *_ = Replay(read_trace(TRACES / "mooncake.jsonl"), 0.1, None, 1.0).planned((0, 0))
    assert first.turns[0].prompt_tokens == 676
    assert first.turns[0].max_tokens == 50
    one, other = (token_ids(each.turns[0].prompt) for each in (first, second))
    assert one[:51] == other[:51]  # the one block of 512 tokens that both have, a tenth of it
    assert one[51:60] != other[51:60]


@pytest.mark.parametrize("turns", [1, 3])
def test_the_rate_is_that_of_requests_whatever_the_number_of_turns(turns: int) -> None:
    planned = synthetic(rate=4.0, requests=9000, turns=turns).planned((0, 0))
    assert sum(len(each.turns) for each in planned) == 9000
    assert planned[-1].start == pytest.approx(9000 / 4.0, rel=0.05)


def test_a_duration_gives_as_many_requests_as_arrive_in_it() -> None:
    load = Synthetic(Shape(FIXED), None, 30.0, 2.0, 1.0, (0,))
    assert len(load.planned((0, 0))) == 60
    assert len(load.at_rate(4.0).planned((0, 0))) == 120
    assert len(load.at_rate(0.1).planned((0, 0))) == FEWEST_REQUESTS


def test_a_turn_begins_with_the_turn_before_and_its_answer() -> None:
    (conversation,) = synthetic(rate=None, requests=3, turns=3).planned((0, 0))
    prompts = [token_ids(turn.prompt) for turn in conversation.turns]
    assert [len(prompt) for prompt in prompts] == [200, 464, 728]
    assert prompts[1][:200] == prompts[0]
    assert prompts[2][:464] == prompts[1]


def test_conversations_take_turns_at_the_shared_prefixes() -> None:
    planned = synthetic(rate=None, requests=4, prefix_tokens=50, prefixes=2).planned((0, 0))
    prompts = [token_ids(each.turns[0].prompt) for each in planned]
    assert {len(prompt) for prompt in prompts} == {250}
    assert prompts[0][:50] == prompts[2][:50] != prompts[1][:50] == prompts[3][:50]
    assert len({tuple(prompt[50:]) for prompt in prompts}) == 4


@pytest.mark.parametrize("load", [synthetic(), Replay(read_trace(TRACES / "mooncake.jsonl"), 1.0, None, 1.0)], ids=type)
def test_parts_make_up_the_load_and_begin_at_once(load: Load) -> None:
    parts = load.parts(3)
    assert [len(part.planned((0, 0))) for part in parts] == [len(load.planned((0, 0))) // 3] * 3
    assert all(part.planned((0, 0))[0].start < 9.0 for part in parts)
    assert len({starts_and_lengths(part.planned((0, 0))) for part in parts}) == 3


def starts_and_lengths(planned: list[Conversation]) -> tuple[tuple[float, int], ...]:
    return tuple((each.start, each.turns[0].prompt_tokens) for each in planned)


def test_words_are_decided_by_the_key_and_common_to_all_vocabularies() -> None:
    pieces = [Piece((1, 2), 5), Piece((1, 3), 4)]
    ids, words = token_ids(pieces), text(pieces).split(" ")[1:]
    assert len(ids) == len(words) == 9
    assert all(FIRST_ID <= each < LAST_ID for each in ids)
    assert set(words) <= set(WORDS)
    assert token_ids([Piece((1, 2), 7)])[:5] == ids[:5]
