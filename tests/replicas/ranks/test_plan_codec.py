from __future__ import annotations

from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from replicas.plan import Admission, StepPlan, Work
from replicas.ranks.plan_codec import decode_plan, encode_plan
from replicas.sampling.grammar_spec import Grammar, GrammarKind
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
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    repetition_penalty=st.floats(0.001, 1000),
    logit_bias=st.lists(st.tuples(ids, st.floats(-100, 100)), max_size=3).map(tuple),
    allowed_token_ids=st.just(()),
    bad_words=st.lists(st.lists(ids, min_size=1, max_size=3).map(tuple), max_size=3).map(tuple),
    logprobs=st.none() | st.integers(0, 20),
    prompt_logprobs=st.none() | st.integers(0, 20),
    choice=ids,
    grammar=st.none() | st.builds(Grammar, st.sampled_from(get_args(GrammarKind)), st.text(max_size=9), tuples),
)
plans = st.builds(
    StepPlan,
    released=tuples,
    admitted=st.lists(st.builds(Admission, ids, tuples, ids, ids, tuples, sampling, ids), max_size=3).map(tuple),
    work=st.lists(st.builds(Work, ids, ids, tuples), max_size=6).map(tuple),
    num_decodes=ids,
)


@given(plans)
def test_a_plan_arrives_as_it_was_sent(plan):
    assert decode_plan(encode_plan(plan)) == plan


def test_a_running_request_costs_eight_bytes_a_step():
    plans = [StepPlan((), (), tuple(Work(slot, 1) for slot in range(count)), count) for count in (100, 256)]
    assert len(encode_plan(plans[1])) - len(encode_plan(plans[0])) == 8 * 156
