"""The numbers of a run, on outcomes whose numbers are known."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from deploy.bench.serve.compare import compare, order, students_quantile
from deploy.bench.serve.generator import Run
from deploy.bench.serve.measure import Effort, Spread, spread, summarize
from deploy.bench.serve.outcome import Outcome, duration
from deploy.bench.serve.slo import Slo, attainment
from deploy.bench.serve.sweep import PRECISION, Trial, highest_held, next_rate


def outcome(scheduled: float = 0.0, events: tuple[float, ...] = (1.0,), **fields) -> Outcome:
    """`events` are seconds after the scheduled arrival."""
    times = array("d", [scheduled + at for at in events])
    ended = times[-1] if times else scheduled
    defaults = {"sent": scheduled, "ended": ended, "events": times, "output_tokens": len(times), "prompt_tokens": 10}
    return Outcome(scheduled=scheduled, **(defaults | fields))


def run(*outcomes: Outcome, cpu_seconds: float = 0.0) -> Run:
    return Run(list(outcomes), duration(outcomes), cpu_seconds)


def test_latency_counts_from_the_scheduled_arrival_however_late_the_request_was_sent() -> None:
    late = outcome(scheduled=10.0, events=(3.0, 3.5), sent=12.0)
    assert late.ttft == 3.0
    assert late.e2e == 3.5


def test_tokens_that_share_an_event_are_one_gap_for_itl_and_many_tokens_for_tpot() -> None:
    shared = outcome(events=(1.0, 1.4, 1.6), output_tokens=7)
    assert shared.itls == pytest.approx([0.4, 0.2])
    assert shared.tpot == pytest.approx(0.6 / 6)


def test_one_token_has_no_gap_and_no_tpot() -> None:
    single = outcome(events=(1.0,))
    assert single.itls == []
    assert single.tpot is None


def test_percentiles_are_those_of_numpy() -> None:
    values = np.random.default_rng(0).exponential(size=1001)
    assert spread(values) == Spread(*np.percentile(values, (50, 90, 99)))
    assert spread([]) is None


def test_rates_are_over_the_time_from_the_first_arrival_to_the_last_byte() -> None:
    summary = summarize(run(outcome(0.0, (1.0, 2.0)), outcome(3.0, (1.0, 2.0), output_tokens=4)), Slo())
    assert summary.seconds == 5.0
    assert summary.output_rate == 6 / 5
    assert summary.total_rate == 26 / 5
    assert summary.request_rate == 2 / 5
    assert summary.tokens_per_event == 6 / 4
    assert summary.goodput is None


def test_refused_and_failed_requests_count_in_goodput_and_nowhere_else() -> None:
    outcomes = [
        outcome(0.0, (0.1, 0.2)),
        outcome(0.0, (0.9, 1.0)),
        outcome(0.0, (), error="status 503"),
        outcome(0.0, (0.1,), error="broken stream", ended=2.0),
    ]
    summary = summarize(run(*outcomes), Slo(ttft=0.5))
    assert summary.errors == {"status 503": 1, "broken stream": 1}
    assert summary.completed == 2
    assert summary.output_tokens == 4
    assert summary.ttft == Spread(*np.percentile([0.1, 0.9], (50, 90, 99)))
    assert summary.goodput is not None
    assert summary.goodput.share == 1 / 4
    assert summary.goodput.rate == 1 / 2


@pytest.mark.parametrize(
    ("slo", "kept"),
    [
        (Slo(), True),
        (Slo(ttft=1.0), True),
        (Slo(ttft=0.9), False),
        (Slo(tpot=0.1), True),
        (Slo(tpot=0.09), False),
        (Slo(e2e=1.4), True),
        (Slo(e2e=1.3), False),
        (Slo(itl=0.2), True),
        (Slo(itl=0.1), False),
    ],
)
def test_a_request_keeps_an_objective_up_to_its_very_limit(slo: Slo, kept: bool) -> None:
    exact = outcome(events=(1.0, 1.125, 1.25, 1.375), output_tokens=5)
    assert slo.keeps(exact) is kept
    assert bool(slo) is (slo != Slo())


@pytest.mark.parametrize(("slow", "kept"), [(1, True), (2, False)])
def test_one_in_a_hundred_gaps_may_be_longer(slow: int, kept: bool) -> None:
    gaps = [0.25] * (100 - slow) + [1.0] * slow
    assert Slo(itl=0.25).keeps(outcome(events=tuple(np.cumsum([1.0, *gaps])))) is kept
    assert attainment([outcome(events=(1.0, 1.5)), outcome()], Slo(itl=0.25)) == 0.5


def test_the_generator_says_when_it_was_late_or_busy() -> None:
    in_time = Spread(0.001, 0.002, 0.005)
    assert Effort(0.2, 1e-5, in_time).complaint is None
    assert "bottleneck" in (Effort(0.9, 1e-5, in_time).complaint or "")
    assert "250 ms late" in (Effort(0.2, 1e-5, Spread(0.001, 0.002, 0.25)).complaint or "")


def test_the_generators_cost_is_per_core_and_event() -> None:
    effort = summarize(run(outcome(0.0, (1.0, 2.0), sent=0.5), cpu_seconds=0.5), Slo()).effort
    assert effort == Effort(cpu_share=0.25, cpu_per_event=0.25, late=Spread(0.5, 0.5, 0.5))


def test_servers_take_turns_and_neither_is_always_first() -> None:
    assert order(4) == [0, 1, 1, 0, 0, 1, 1, 0]


def rounds(factor: float, seed: int, count: int = 8) -> list[list[Outcome]]:
    rng = np.random.default_rng(seed)
    return [
        [outcome(0.0, tuple(np.cumsum(factor * rng.gamma(9.0, 0.02, 20)))) for _ in range(10)] for _ in range(count)
    ]


def test_a_ratio_is_that_of_all_requests_together_and_its_interval_holds_the_truth() -> None:
    first, second = rounds(0.8, seed=1), rounds(1.0, seed=2)
    ratios = {ratio.metric: ratio for ratio in compare(first, second, Slo(ttft=0.18), np.random.default_rng(0))}
    p50 = ratios["ITL p50"]
    gaps = [np.concatenate([each.itls for part in side for each in part]) for side in (first, second)]
    assert p50.ratio == pytest.approx(np.median(gaps[0]) / np.median(gaps[1]))
    assert p50.first == pytest.approx(1e3 * np.median(gaps[0]))
    assert p50.low is not None
    assert p50.low < 0.8 < p50.high < 1
    assert p50.decided
    assert ratios["output"].ratio == pytest.approx(sum(map(duration, second)) / sum(map(duration, first)))
    assert ratios["goodput"].ratio > 1


def test_two_equal_servers_are_not_told_apart() -> None:
    ratios = compare(rounds(1.0, seed=3, count=12), rounds(1.0, seed=4, count=12), Slo(), np.random.default_rng(0))
    assert sum(ratio.decided for ratio in ratios) <= 1  # at 95 %, one in twenty may be


@pytest.mark.parametrize(("freedom", "quantile"), [(3, 3.182), (5, 2.571), (11, 2.201), (100, 1.984)])
def test_students_quantile_is_that_of_the_tables(freedom: int, quantile: float) -> None:
    assert students_quantile(0.975, freedom) == pytest.approx(quantile, rel=0.01)


def test_what_cannot_be_divided_has_no_ratio() -> None:
    refused = [[outcome(0.0, (), error="status 503", ended=1.0)] for _ in range(4)]
    ratios = compare(rounds(1.0, 1, 4), refused, Slo(), np.random.default_rng(0))
    assert [ratio.ratio for ratio in ratios] == [None] * len(ratios)
    assert not any(ratio.decided for ratio in ratios)


def sweep(capacity: float, start: float) -> list[Trial]:
    trials: list[Trial] = []
    while (rate := next_rate(trials, start)) is not None:
        trials.append(Trial(rate, rate <= capacity))
        assert len(trials) < 30
    return trials


@pytest.mark.parametrize("capacity", [0.3, 1.0, 1.9, 7.3, 100.0])
def test_a_sweep_finds_the_capacity(capacity: float) -> None:
    found = highest_held(sweep(capacity, start=1.0))
    assert found is not None
    assert found <= capacity <= found * PRECISION


def test_a_sweep_doubles_then_bisects() -> None:
    assert [trial.rate for trial in sweep(5.0, start=1.0)[:5]] == pytest.approx([1, 2, 4, 8, 32**0.5])


def test_a_sweep_never_goes_far_beyond_what_broke() -> None:
    assert max(trial.rate for trial in sweep(5.0, start=1.0)) == 8


def test_a_sweep_gives_up_where_nothing_holds() -> None:
    trials = sweep(0.0, start=1.0)
    assert [trial.rate for trial in trials] == [1, 1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64]
    assert highest_held(trials) is None


def test_a_lucky_rate_above_a_broken_one_does_not_count() -> None:
    assert highest_held([Trial(1, True), Trial(4, True), Trial(2, False)]) == 1
