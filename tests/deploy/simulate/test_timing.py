"""Step times against what Dynamo's own simulator measures for single steps (ai-dynamo-runtime 1.6.1)."""

from __future__ import annotations

import pytest

from deploy.simulate.timing import DecodeTiming, prefill_seconds

CAPACITY = 16384 * 64


@pytest.mark.parametrize(("tokens", "milliseconds"), [(1000, 32.105859), (4000, 83.971162), (4160, 86.950169)])
def test_prefill_takes_what_the_mocker_says(tokens, milliseconds):
    assert prefill_seconds(tokens) == pytest.approx(milliseconds / 1e3, abs=1e-9)


@pytest.mark.parametrize(("contexts", "milliseconds"), [(1001, 5.791536), (4002, 5.945760)])
def test_decode_takes_what_the_mocker_says(contexts, milliseconds):
    assert DecodeTiming(CAPACITY).seconds(contexts) == pytest.approx(milliseconds / 1e3, abs=1e-9)


def test_a_run_of_steps_takes_exactly_what_its_steps_take():
    timing = DecodeTiming(1000)
    assert timing.run_seconds(70, 7, 200).tolist() == [timing.seconds(70 + 7 * step) for step in range(200)]


def test_nothing_takes_no_time_and_a_decode_step_never_less_than_a_millisecond():
    assert prefill_seconds(0) == DecodeTiming(10).seconds(0) == 0.0
    assert DecodeTiming(10).seconds(100) == 0.001
