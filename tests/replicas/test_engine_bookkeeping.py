"""The engine over an executor that checks every KV block: any schedule gives the same tokens and loses nothing."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.config import EngineConfig
from replicas.messages import KvRemoved, KvStored
from tests.support.checking_executor import continuation, logprobs_of
from tests.support.engines import checking_engine, drain, request

CONFIG = EngineConfig(block_size=4, max_batched_tokens=16, max_running=4)
WISHES = [{}, {}, {"logprobs": 1}, {"prompt_logprobs": 1}, {"logprobs": 1, "prompt_logprobs": 1}]


@st.composite
def workloads(draw):
    """Configurations, and requests that share prefixes, each with a step to arrive at and perhaps one to be aborted."""
    block_size = draw(st.sampled_from([1, 2, 4]))
    max_running = draw(st.integers(1, 6))
    config = EngineConfig(
        block_size=block_size,
        max_running=max_running,
        max_batched_tokens=draw(st.integers(max_running, 24)),
        prefix_caching=draw(st.booleans()),
        policy=draw(st.sampled_from(["fcfs", "priority", "shortest"])),
    )
    stem = draw(st.lists(st.integers(0, 5), min_size=1, max_size=20))
    requests = draw(
        st.lists(
            st.tuples(
                st.integers(0, len(stem)),
                st.lists(st.integers(0, 5), min_size=1, max_size=8),
                st.integers(1, 12),
                st.integers(0, 3),
                st.integers(0, 20),
                st.one_of(st.none(), st.integers(0, 30)),
                st.sampled_from(
                    [{}, {}, {"logprobs": 1}, {"prompt_logprobs": 1}, {"logprobs": 1, "prompt_logprobs": 1}]
                ),
            ),
            min_size=1,
            max_size=10,
        )
    )
    longest = max(cut + len(tail) + output for cut, tail, output, *_ in requests)
    num_blocks = -(-longest // block_size) + draw(st.integers(0, 6))
    return config, num_blocks, stem, requests, draw(st.integers(1, 3))


def answer(prompt, output, wanted):
    """Tokens, and of answer and prompt the log probabilities that are wanted."""
    token_ids = [*prompt, *continuation(prompt, output)]
    entries = [None, *(logprobs_of(token_ids, position) for position in range(1, len(token_ids)))]
    logprobs = entries[len(prompt) :] if "logprobs" in wanted else ()
    prompt_logprobs = entries[: len(prompt)] if "prompt_logprobs" in wanted else ()
    return tuple(token_ids[len(prompt) :]), tuple(logprobs), tuple(prompt_logprobs)


@settings(max_examples=150, deadline=None)
@given(workloads())
def test_any_schedule_generates_what_each_request_would_alone(workload):
    config, num_blocks, stem, requests, depth = workload
    engine = checking_engine(num_blocks, config, depth=depth)
    expected, finished, aborted = {}, {}, set()
    for step in range(2000):
        for index, (cut, tail, output, priority, arrive, abort_at, wanted) in enumerate(requests):
            prompt = stem[:cut] + tail
            if arrive == step:
                engine.add(request(str(index), prompt, output, priority=priority, **wanted))
                expected[str(index)] = answer(prompt, output, wanted)
            if abort_at is not None and arrive + abort_at == step and engine.abort(str(index)):
                aborted.add(str(index))
                engine.check_integrity()
        finished |= {summary.request_id: summary for summary in engine.step().finished}
        engine.check_integrity()
        if step > 20 and not engine.has_work:
            break
    assert finished.keys() == expected.keys() - aborted
    for name, summary in finished.items():
        assert (summary.token_ids, summary.logprobs, summary.prompt_logprobs) == expected[name]
    assert engine.load().kv_blocks_free == num_blocks
    assert engine.load().running == engine.load().waiting == 0


def test_a_step_never_exceeds_its_token_budget():
    engine = checking_engine(64, CONFIG)
    for index in range(6):
        engine.add(request(str(index), range(index, index + 30), 10))
    drain(engine)
    assert max(engine._executor.step_sizes) == CONFIG.max_batched_tokens


def test_decodes_run_before_a_long_prompt():
    engine = checking_engine(64, CONFIG)
    engine.add(request("short", [1, 2], 20))
    engine.step()
    engine.add(request("long", list(range(90)), 4))
    offsets = [[event.offset for event in engine.step().events if event.request_id == "short"] for _ in range(5)]
    assert offsets == [[1], [2], [3], [4], [5]]


def test_a_small_pool_preempts_the_latest_and_loses_no_token():
    engine = checking_engine(8, CONFIG)
    prompts = {name: [ord(name), 1, 2, 3, 4] for name in "ABCD"}
    for name, prompt in prompts.items():
        engine.add(request(name, prompt, 14))
    finished = drain(engine)
    assert engine.load().preemptions_total > 0
    assert finished["A"].preemptions == 0
    assert {name: list(finished[name].token_ids) for name in prompts} == {
        name: continuation(prompt, 14) for name, prompt in prompts.items()
    }


def test_priority_orders_admission():
    engine = checking_engine(64, EngineConfig(block_size=4, max_batched_tokens=16, max_running=1, policy="priority"))
    engine.add(request("late", [1, 2, 3], 2, priority=5))
    engine.add(request("soon", [4, 5, 6], 2, priority=1))
    assert engine.step().events[0].request_id == "soon"


class TestShortestFirst:
    def start(self):
        engine = checking_engine(64, replace(CONFIG, policy="shortest"), clock=lambda: self.now)
        engine._pace.prefill_rate = 10.0  # tokens/s
        self.now = 0.0
        engine.add(request("long", range(80), 4))
        engine.step()
        return engine

    def first_token_step(self, engine, name):
        return next(step for step in range(20) if any(event.request_id == name for event in engine.step().events))

    def test_a_short_prompt_overtakes_a_long_one_that_is_under_way(self):
        engine = self.start()
        self.now = 2.0
        engine.add(request("short", [1, 2, 3], 1))
        assert self.first_token_step(engine, "short") == 0

    def test_a_long_prompt_waits_for_none_that_comes_later_than_its_own_length(self):
        engine = self.start()
        self.now = 9.0
        engine.add(request("short", [1, 2, 3], 1))
        assert self.first_token_step(engine, "short") > 2


class TestPrefixCache:
    def test_siblings_admitted_in_one_step_compute_their_prompt_once(self):
        engine = checking_engine(64, CONFIG)
        prompt = list(range(9))
        for name in ("first", "second", "third"):
            engine.add(request(name, prompt, 3))
        finished = drain(engine)
        assert [finished[name].cached_tokens for name in ("first", "second", "third")] == [0, 8, 8]
        assert all(list(summary.token_ids) == continuation(prompt, 3) for summary in finished.values())
        assert engine._executor.step_sizes[0] == 9 + 1 + 1

    def test_a_second_request_reuses_full_blocks_but_computes_its_last_token(self):
        engine = checking_engine(64, CONFIG)
        prompt = list(range(12))
        engine.add(request("miss", prompt))
        first = drain(engine)["miss"]
        engine.add(request("hit", prompt))
        second = drain(engine)["hit"]
        assert (first.cached_tokens, second.cached_tokens) == (0, 8)
        assert first.token_ids == second.token_ids

    def test_a_salt_separates_tenants(self):
        engine = checking_engine(64, CONFIG)
        for name, salt in (("mine", "a"), ("yours", "b"), ("again", "a")):
            engine.add(request(name, range(12), salt=salt))
            cached = drain(engine)[name].cached_tokens
            assert cached == (8 if name == "again" else 0)

    def test_generated_tokens_are_cached_for_the_next_turn(self):
        engine = checking_engine(64, CONFIG)
        engine.add(request("turn 1", [1, 2, 3], 13))
        answer = drain(engine)["turn 1"].token_ids
        engine.add(request("turn 2", [1, 2, 3, *answer, 7]))
        assert drain(engine)["turn 2"].cached_tokens == 12

    def test_events_name_exactly_what_a_lookup_would_find(self):
        engine = checking_engine(10, CONFIG)
        known: set[bytes] = set()
        for index in range(30):
            engine.add(request(str(index), [index % 7] * 9, 6))
            while engine.has_work:
                for event in engine.step().kv_events:
                    if isinstance(event, KvStored):
                        assert known.isdisjoint(event.block_keys)
                        known |= set(event.block_keys)
                    if isinstance(event, KvRemoved):
                        assert known >= set(event.block_keys)
                        known -= set(event.block_keys)
        assert known == engine._pool._block_of.keys()


class TestAbort:
    def test_500_random_aborts_leave_the_pool_as_it_was(self):
        rng = random.Random(7)
        engine = checking_engine(40, CONFIG)
        engine.step()
        alive: list[str] = []
        for index in range(500):
            name = str(index)
            engine.add(request(name, [rng.randrange(9) for _ in range(rng.randrange(1, 60))], 60))
            alive.append(name)
            for _ in range(rng.randrange(3)):
                finished = {summary.request_id for summary in engine.step().finished}
                alive = [name for name in alive if name not in finished]
            while len(alive) > rng.randrange(8):
                assert engine.abort(alive.pop(rng.randrange(len(alive)))).finish_reason == "abort"
            engine.check_integrity()
        for name in alive:
            engine.abort(name)
        engine.step()
        engine.check_integrity()
        load = engine.load()
        assert (load.kv_blocks_free, load.running, load.waiting) == (40, 0, 0)

    def test_an_unknown_request_is_not_an_error(self):
        assert checking_engine(8, CONFIG).abort("never seen") is None


class TestRefusals:
    @pytest.mark.parametrize(
        ("prompt", "output", "words"),
        [
            ([], 4, "empty"),
            ([-1], 4, "token id -1"),
            ([97], 4, "token id 97"),
            ([1] * 30, 3, "30 tokens and max_tokens is 3.*limit of 32"),
        ],
    )
    def test_what_can_never_be_served_is_refused_at_once(self, prompt, output, words):
        engine = checking_engine(8, CONFIG)
        with pytest.raises(ValueError, match=words):
            engine.add(request("bad", prompt, output))
        engine.check_integrity()
        assert not engine.has_work

    def test_an_exact_fit_is_served(self):
        engine = checking_engine(8, CONFIG)
        engine.add(request("fits", [1] * 30, 2))
        assert len(drain(engine)["fits"].token_ids) == 2

    def test_a_request_id_in_use_is_refused(self):
        engine = checking_engine(8, CONFIG)
        engine.add(request("same", [1]))
        with pytest.raises(ValueError, match="already"):
            engine.add(request("same", [2]))
