"""An engine draws what a request's constraint allows and nothing else, whatever batch, preemption and resumption do."""

from __future__ import annotations

import json
import re

import pytest

from replicas.build import build_engine
from replicas.config import EngineConfig
from replicas.engine import Engine
from replicas.grammar.source import GrammarError
from replicas.messages import GenerateRequest
from replicas.sampling.grammar_spec import Grammar
from replicas.sampling.params import SamplingParams
from tests.support.checkpoints import write_tiny_with_small_vocabulary
from tests.support.constrained import Constrained, compiling
from tests.support.rank_group import start_ranks

PATTERN = "[a-z]{2,4}-[0-9]{1,8}!"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
}
GRAMMARS = {
    "regex": Grammar("regex", PATTERN),
    "choice": Grammar("choice", '["yes", "no", "perhaps not"]'),
    "schema": Grammar("json_schema", json.dumps(PERSON)),
    "ebnf": Grammar("ebnf", 'root ::= "<" [ab]{3,9} ">"'),
}
PROMPT = (7, 30, 41, 52, 63)


def fits(name: str, text: str) -> bool:
    match name:
        case "regex":
            return re.fullmatch(PATTERN, text) is not None
        case "choice":
            return text in ("yes", "no", "perhaps not")
        case "schema":
            person = json.loads(text)
            return set(person) == {"name", "age"} and len(person["name"]) <= 8 and 0 <= person["age"] <= 120
    return re.fullmatch("<[ab]{3,9}>", text) is not None


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_with_small_vocabulary(tmp_path_factory.mktemp("tiny"))


def engine_for(folder, **changes) -> Engine:
    config = {"block_size": 4, "max_running": 16, "kv_cache_memory": 4 * 1024**2, "dtype": "float32"}
    return build_engine(str(folder), EngineConfig(**{**config, **changes}))


@pytest.fixture(scope="module")
def compiler(folder):
    model = engine_for(folder).model
    with compiling(folder, model.vocab_size, model.eos_token_ids) as compiler:
        yield compiler


@pytest.fixture(scope="module")
def whole(folder, compiler):
    return Constrained(engine_for(folder), compiler)


def test_each_request_of_a_batch_follows_its_own_constraint(whole):
    free_alone = whole.answer(PROMPT, None, seed=5).token_ids
    for seed in range(4):
        for name, grammar in GRAMMARS.items():
            whole.add(f"{name}/{seed}", PROMPT, grammar, seed=seed, temperature=1.0)
    whole.add("free", PROMPT, None, seed=5)
    finished = whole.run()
    assert finished.pop("free").token_ids == free_alone
    for request_id, summary in finished.items():
        assert summary.finish_reason == "stop"
        assert fits(request_id.partition("/")[0], whole.text(summary)), whole.text(summary)


@pytest.mark.parametrize("sampling", [{"ignore_eos": True}, {"min_tokens": 40}, {"min_tokens": 40, "ignore_eos": True}])
def test_an_answer_that_cannot_go_on_ends(whole, sampling):
    summary = whole.answer(PROMPT, GRAMMARS["choice"], **sampling)
    assert fits("choice", whole.text(summary))
    assert summary.finish_reason == "stop"


def test_too_few_tokens_cut_an_answer_off(whole):
    summary = whole.answer(PROMPT, GRAMMARS["schema"], max_tokens=3)
    assert summary.finish_reason == "length"
    assert whole.text(summary).startswith("{")


def test_greedy_answers_follow_a_constraint_too(whole):
    for name, grammar in GRAMMARS.items():
        assert fits(name, whole.text(whole.answer(PROMPT, grammar, temperature=0.0, max_tokens=120)))


def test_biases_bad_words_and_penalties_do_not_lead_out_of_a_constraint(whole):
    everything = tuple((token_id, -100.0) for token_id in range(0, 400, 2))
    yes = whole.answer(PROMPT, Grammar("choice", '["yes"]'), max_tokens=12).token_ids[:-1]
    for sampling in (
        {"logit_bias": everything},
        {"repetition_penalty": 5.0, "frequency_penalty": 2.0},
        {"bad_words": tuple((token_id,) for token_id in yes)},
        {"top_k": 1, "min_p": 0.9},
    ):
        assert whole.text(whole.answer(PROMPT, Grammar("choice", '["yes"]'), **sampling)) == "yes"


def test_log_probabilities_are_the_models_own_and_finite(whole):
    summary = whole.answer(PROMPT, GRAMMARS["choice"], logprobs=5)
    assert len(summary.logprobs) == len(summary.token_ids)
    assert all(-1000 < entry.logprob <= 0 for entry in summary.logprobs)
    assert all(-1000 < logprob <= 0 for entry in summary.logprobs for _, logprob in entry.top)


@pytest.mark.parametrize("name", GRAMMARS)
def test_a_resumed_answer_goes_on_as_if_undisturbed(whole, folder, compiler, name):
    undisturbed = whole.answer(PROMPT, GRAMMARS[name], seed=3).token_ids
    other = Constrained(engine_for(folder), compiler)
    for cut in range(len(undisturbed) - 1):
        assert other.answer(PROMPT, GRAMMARS[name], undisturbed[:cut], seed=3).token_ids == undisturbed


def test_a_preempted_answer_goes_on_as_if_undisturbed(whole, folder, compiler):
    alone = {seed: whole.answer(PROMPT, GRAMMARS["schema"], seed=seed).token_ids for seed in range(8)}
    block_bytes = 4 * 1024**2 // whole.engine.model.num_blocks
    tight = Constrained(engine_for(folder, kv_cache_memory=20 * block_bytes), compiler)
    for seed in alone:
        tight.add(str(seed), PROMPT, GRAMMARS["schema"], seed=seed)
    finished = tight.run()
    assert tight.engine.load().preemptions_total > 0
    assert {seed: finished[str(seed)].token_ids for seed in alone} == alone


def test_a_constraint_begins_behind_the_reasoning(whole):
    marker = 77
    grammar = Grammar("choice", '["yes", "no"]', after=(marker,))
    summary = whole.answer(PROMPT, grammar, logit_bias=((marker, 100.0),))
    assert summary.token_ids[0] == marker
    assert whole.text(summary).removeprefix(whole._compiler.tokens.token_bytes[marker].decode()) in ("yes", "no")
    never = whole.answer(PROMPT, grammar, logit_bias=((marker, -100.0),), max_tokens=50)
    assert never.finish_reason == "length"
    assert not set(never.token_ids) & set(whole.engine.model.eos_token_ids)


def test_a_request_is_never_served_without_its_constraint(whole):
    request = GenerateRequest("open", PROMPT, SamplingParams(grammar=GRAMMARS["choice"]))
    with pytest.raises(ValueError, match="constraint"):
        whole.engine.add(request)
    with pytest.raises(GrammarError, match="does not follow"):
        whole.add("wrong", PROMPT, GRAMMARS["choice"], so_far=(70, 71, 72))
    assert whole.engine.idle


@pytest.mark.slow
@pytest.mark.parametrize("layout", [(2, 1), (1, 2)])
def test_several_ranks_draw_under_the_same_constraints(whole, folder, compiler, layout):
    tensor, pipeline = layout
    config = EngineConfig(
        block_size=4, max_running=16, kv_cache_memory=4 * 1024**2, dtype="float32",
        tensor_parallel=tensor, pipeline_parallel=pipeline,
    )  # fmt: skip
    with start_ranks(tensor, pipeline) as ranks:
        divided = Constrained(ranks.engine(folder, config), compiler)
        for name, grammar in GRAMMARS.items():
            for temperature in (0.0, 1.0):
                sampling = {"seed": 3, "temperature": temperature, "max_tokens": 120}
                one, many = (each.answer(PROMPT, grammar, **sampling) for each in (whole, divided))
                assert fits(name, divided.text(many))
                assert many.token_ids == one.token_ids
        divided.engine.close()
