from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from replicas.messages import TokenLogprobs
from replicas.plan import StepResults
from replicas.ranks.logprob_numbers import Asked, flattened, num_numbers, unflattened

floats = st.floats(-1e9, 0, width=32) | st.just(-float("inf"))


@st.composite
def steps(draw):
    """Results, and what was asked for; the vocabulary may have fewer tokens than that."""
    num_rows, vocab = draw(st.integers(1, 5)), draw(st.integers(1, 30))

    def entry(top: int) -> TokenLogprobs:
        pairs = st.tuples(st.integers(0, 2**31 - 1), floats)
        size = min(top, vocab)
        return TokenLogprobs(draw(floats), tuple(draw(st.lists(pairs, min_size=size, max_size=size))))

    asked, logprobs, prompt_logprobs = [], {}, {}
    for row in draw(st.sets(st.integers(0, num_rows - 1))):
        one = Asked(row, draw(st.integers(0, 3)), draw(st.integers(0, 20)), draw(st.none() | st.integers(0, 20)))
        asked.append(one)
        if one.num_prompt:
            prompt_logprobs[row] = [entry(one.prompt_top) for _ in range(one.num_prompt)]
        if one.top is not None:
            logprobs[row] = entry(one.top)
    return StepResults([None] * num_rows, logprobs, prompt_logprobs), asked


@given(steps())
def test_they_arrive_as_they_were_sent(step):
    results, asked = step
    numbers = flattened(results, asked)
    assert len(numbers) == num_numbers(asked)
    assert unflattened(results.token_ids, asked, numbers) == results


def test_nobody_asking_costs_nothing():
    assert num_numbers([]) == 0
