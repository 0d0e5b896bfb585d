"""Sampling fields and log probabilities from the request to the real engine and back: a tiny model in float32 on two
replicas, over HTTP."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from transformers import AutoModelForCausalLM

from cluster.codec import DEFAULT_BUILDER
from replicas.config import EngineConfig
from tests.support.checkpoints import write_tiny_with_small_vocabulary
from tests.support.local_gateway import local_gateway
from tests.support.sse import complete, read_stream

BLOCK = 8
PROMPT = [60, 71, 82, 93, 104, 115, 126, 137, 148, 159, 170]
SAMPLED = {"prompt": PROMPT, "temperature": 1, "max_tokens": 24, "ignore_eos": True}
GREEDY = SAMPLED | {"temperature": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_with_small_vocabulary(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def gateway(folder):
    """Prompts longer than 20 tokens are computed in chunks."""
    sizes = {"block_size": BLOCK, "max_batched_tokens": 20, "max_running": 16, "kv_cache_memory": 4 * 1024**2}
    config = EngineConfig(dtype="float32", **sizes)
    with local_gateway(folder, config, DEFAULT_BUILDER, engines=2) as gateway:
        yield gateway


@pytest.fixture
def client(gateway):
    with gateway.client() as client:
        yield client


def texts(client, **fields):
    return [choice["text"] for choice in complete(client, SAMPLED | fields)["choices"]]


def argmax(client, **fields):
    return complete(client, SAMPLED | fields)["choices"][0]["text"]


class TestSeeds:
    def test_choices_differ_and_repeat_alone_streamed_and_under_load(self, gateway, client):
        first = texts(client, n=4, seed=7)
        assert len(set(first)) > 1
        assert texts(client, n=4, seed=7) == first
        streamed = read_stream(client, "/v1/completions", SAMPLED | {"model": "test", "n": 4, "seed": 7})
        assert [streamed.texts[index] for index in range(4)] == first
        with ThreadPoolExecutor(8) as threads:

            def other(number):
                with gateway.client() as own:
                    return texts(own, prompt=[number + 50] * 30, n=2)

            others = [threads.submit(other, number) for number in range(12)]
            assert texts(client, n=4, seed=7) == first
            assert all(waited.result() for waited in others)

    def test_one_choice_repeats_on_all_replicas_and_is_the_first_of_several(self, gateway, client):
        assert len({texts(client, seed=7, cache_salt=str(turn))[0] for turn in range(10)}) == 1
        assert texts(client, seed=7) == texts(client, seed=7, n=3)[:1]
        assert all(gateway.load(place).generation_tokens_total for place in range(2))

    def test_another_seed_gives_another_answer(self, client):
        assert texts(client, seed=7) != texts(client, seed=8)


class TestShaping:
    def test_all_ways_to_ask_for_the_likeliest_agree(self, client):
        likeliest = argmax(client, temperature=0)
        for fields in (
            {"top_k": 1},
            {"top_k": 1, "top_p": 0.5},
            {"top_p": 1e-9},
            {"temperature": 1e-6},
            {"min_p": 1.0},
        ):
            assert argmax(client, **fields) == likeliest

    def test_a_bias_forces_a_token(self, client):
        fields = {"logit_bias": {"77": 100}, "logprobs": 0, "temperature": 0, "max_tokens": 5}
        tokens = complete(client, SAMPLED | fields)["choices"][0]["logprobs"]["tokens"]
        assert len(set(tokens)) == 1

    def test_only_allowed_tokens_are_drawn_and_bad_words_are_not(self, client):
        allowed = complete(client, SAMPLED | {"allowed_token_ids": [70, 71], "logprobs": 0, "seed": 1})
        assert len(set(allowed["choices"][0]["logprobs"]["tokens"])) == 2
        word = allowed["choices"][0]["logprobs"]["tokens"][0]
        banned = complete(client, SAMPLED | {"allowed_token_ids": [70, 71], "bad_words": [word], "logprobs": 0})
        assert word not in banned["choices"][0]["logprobs"]["tokens"]

    @pytest.mark.parametrize("stop", [{"stop_token_ids": [77, 78]}, {"stop_token_ids": [77], "stop": "never said"}])
    def test_no_stop_token_is_drawn_too_early(self, client, stop):
        fields = {"logit_bias": {"77": 100, "78": 50}, "min_tokens": 20, "max_tokens": 24}
        whole = complete(client, GREEDY | fields | stop)
        assert whole["usage"]["completion_tokens"] == 21
        assert whole["choices"][0]["finish_reason"] == "stop"

    def test_penalties_change_the_penalised_alone(self, client):
        plain = argmax(client, temperature=0)
        with ThreadPoolExecutor(8) as threads:
            penalised = threads.submit(argmax, client, temperature=0, repetition_penalty=1.9, frequency_penalty=2)
            others = [threads.submit(argmax, client, temperature=0) for _ in range(7)]
            assert {waited.result() for waited in others} == {plain}
            assert penalised.result() != plain


class TestScores:
    @pytest.fixture(scope="class")
    def oracle(self, folder):
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    @torch.inference_mode()
    def expected(self, oracle, token_ids):
        """The log probability of each token but the first, in the model's own distribution."""
        logprobs_TV = oracle(torch.tensor([token_ids])).logits[0].log_softmax(-1)
        return logprobs_TV[:-1].gather(1, torch.tensor(token_ids)[1:, None])[:, 0].tolist()

    @pytest.mark.parametrize("length", [BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 1])
    def test_a_prompts_scores_are_those_of_transformers_cached_or_not(self, client, oracle, length):
        ids = [(7 * place + 13) % 300 + 50 for place in range(length)]
        body = {"prompt": ids, "echo": True, "max_tokens": 0, "logprobs": 2}
        for _ in range(2):
            first, *others = complete(client, body)["choices"][0]["logprobs"]["token_logprobs"]
            assert first is None
            assert others == pytest.approx(self.expected(oracle, ids), abs=1e-4)

    def test_sampling_fields_do_not_change_an_answers_scores(self, client):
        """They are of the model's own distribution: the same token has the same score however it came to be drawn."""
        plain = complete(client, GREEDY | {"logprobs": 3, "max_tokens": 1})["choices"][0]["logprobs"]
        for fields in ({"temperature": 2, "top_k": 1}, {"presence_penalty": 1.5}, {"top_p": 0.01}):
            shaped = complete(client, GREEDY | {"logprobs": 3, "max_tokens": 1} | fields)["choices"][0]["logprobs"]
            assert shaped["top_logprobs"][0] == pytest.approx(plain["top_logprobs"][0], abs=1e-5)

    def test_the_best_of_several_is_the_likeliest_of_the_same_choices(self, client):
        choices = complete(client, SAMPLED | {"n": 5, "seed": 3, "logprobs": 0})["choices"]
        means = [sum(scores := choice["logprobs"]["token_logprobs"]) / len(scores) for choice in choices]
        ranked = sorted(range(5), key=lambda index: -means[index])
        best = complete(client, SAMPLED | {"n": 2, "best_of": 5, "seed": 3})["choices"]
        assert [choice["text"] for choice in best] == [choices[index]["text"] for index in ranked[:2]]
