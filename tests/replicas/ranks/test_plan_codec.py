from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from replicas.plan import Admission, StepPlan, Work
from replicas.ranks.plan_codec import decode_plan, encode_plan
from replicas.sampling.params import MAX_SEED, SamplingParams

ids = st.integers(0, 2**31 - 1)
tuples = st.lists(ids, max_size=5).map(tuple)
sampling = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 2**20),
    temperature=st.floats(0, 2),
    top_k=st.integers(0, 1000),
    top_p=st.floats(0.001, 1),
    min_p=st.floats(0, 1),
    seed=st.integers(0, MAX_SEED),
    stop_token_ids=tuples,
    ignore_eos=st.booleans(),
)
plans = st.builds(
    StepPlan,
    released=tuples,
    admitted=st.lists(st.builds(Admission, ids, tuples, ids, ids, tuples, sampling), max_size=3).map(tuple),
    work=st.lists(st.builds(Work, ids, ids, tuples), max_size=6).map(tuple),
    num_decodes=ids,
)


@given(plans)
def test_a_plan_arrives_as_it_was_sent(plan):
    assert decode_plan(encode_plan(plan)) == plan


def test_a_running_request_costs_eight_bytes_a_step():
    plans = [StepPlan((), (), tuple(Work(slot, 1) for slot in range(count)), count) for count in (100, 256)]
    assert len(encode_plan(plans[1])) - len(encode_plan(plans[0])) == 8 * 156
