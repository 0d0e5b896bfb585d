"""Pure policies: the prefill budget and the pace it is computed from."""

from __future__ import annotations

import pytest

from replicas.budget import prefill_budget
from replicas.pace import Pace


def budget(**change):
    given = {
        "max_batched_tokens": 1000,
        "num_decodes": 10,
        "itl_objective": 0.05,
        "decode_seconds": 0.01,
        "prefill_rate": 5000.0,
        "smallest_chunk": 16,
    }
    return prefill_budget(**given | change)


class TestPrefillBudget:
    def test_a_mixed_step_stays_within_the_objective(self):
        assert budget() == 200

    @pytest.mark.parametrize("change", [{"itl_objective": None}, {"prefill_rate": 0.0}])
    def test_without_an_objective_or_a_measurement_all_that_fits(self, change):
        assert budget(**change) == 990

    def test_with_nobody_decoding_all_that_fits(self):
        assert budget(num_decodes=0) == 1000

    def test_prompts_make_progress_even_where_the_objective_cannot_be_kept(self):
        assert budget(decode_seconds=0.2) == 16

    def test_decodes_come_first(self):
        assert budget(num_decodes=995, decode_seconds=0.2) == 5


class TestPace:
    def test_it_separates_prefill_from_decode(self):
        pace = Pace()
        pace.observe(0.01, num_decodes=4, num_prefill_tokens=0)
        pace.observe(0.11, num_decodes=4, num_prefill_tokens=500)
        assert pace.decode_step_seconds == pytest.approx(0.01)
        assert pace.decode_rate == pytest.approx(400)
        assert pace.prefill_rate == pytest.approx(5000)

    def test_it_follows_a_change_within_some_steps(self):
        pace = Pace()
        for seconds in [0.01] * 5 + [0.02] * 20:
            pace.observe(seconds, 1, 0)
        assert pace.decode_step_seconds == pytest.approx(0.02, rel=0.02)

    def test_the_fixed_price_of_a_prefill_does_not_count_for_its_rate(self):
        pace = Pace()
        for num_tokens in [64, 4000, 100, 64, 900, 64, 64]:
            pace.observe(0.02 + num_tokens / 50_000, 0, num_tokens)
        assert pace.prefill_rate == pytest.approx(50_000)

    def test_steps_of_one_size_tell_no_more_than_their_tokens_per_second(self):
        pace = Pace()
        for _ in range(5):
            pace.observe(0.02 + 64 / 50_000, 0, 64)
        assert pace.prefill_rate == pytest.approx(64 / (0.02 + 64 / 50_000))
