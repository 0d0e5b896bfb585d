"""Several choices of one prompt: separate, complete, computed and charged for as one request."""

from __future__ import annotations

import asyncio

import pytest

from cluster.gateway.caller import Caller
from cluster.gateway.completions import prepare_completion
from cluster.gateway.protocol import CompletionRequest
from tests.support.sse import complete, read_stream, refused

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
LONG_PROMPT = "one two three four five six seven eight nine ten " * 6
GREETING = [{"role": "user", "content": "hi"}]

pytestmark = pytest.mark.usefixtures("alive")


def answer(http, path, body):
    response = http.post(path, json={"model": "test"} | body)
    assert response.status_code == 200, response.text
    return response.json()


class TestStreams:
    def test_every_choice_of_a_chat_begins_with_its_role_and_ends_once(self, http):
        body = {"model": "test", "messages": GREETING, "n": 3, "max_tokens": 8}
        streamed = read_stream(http, CHAT, body)
        assert streamed.reasons == dict.fromkeys(range(3), "length")
        assert streamed.roles == dict.fromkeys(range(3), 1)
        for index in range(3):
            first = next(event for event in streamed.events if event["choices"][0]["index"] == index)
            assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        whole = answer(http, CHAT, body)
        assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
        assert [choice["message"]["content"] for choice in whole["choices"]] == [streamed.texts[n] for n in range(3)]

    def test_choices_of_several_prompts_are_told_apart_by_their_index(self, http):
        body = {"model": "test", "prompt": ["a b c", "d e f"], "n": 2, "max_tokens": 3}
        streamed = read_stream(http, COMPLETIONS, body | {"stream_options": {"include_usage": True}})
        whole = complete(http, body)
        texts = [choice["text"] for choice in whole["choices"]]
        assert texts == ["a b c", "a b c", "d e f", "d e f"]
        assert [streamed.texts[index] for index in range(4)] == texts
        assert streamed.reasons == dict.fromkeys(range(4), "length")
        assert streamed.usage | {"prompt_tokens_details": None} == whole["usage"] | {"prompt_tokens_details": None}

    def test_the_openai_client_reads_all_choices(self, openai):
        whole = openai.chat.completions.create(model="test", messages=GREETING, n=3, max_tokens=4)
        assert [choice.index for choice in whole.choices] == [0, 1, 2]
        assert all(choice.finish_reason == "length" for choice in whole.choices)


class TestCost:
    def test_the_prompt_is_charged_once_and_every_answer(self, http):
        one = complete(http, {"prompt": LONG_PROMPT, "max_tokens": 5})["usage"]
        four = complete(http, {"prompt": LONG_PROMPT, "max_tokens": 5, "n": 4})["usage"]
        assert four["prompt_tokens"] == one["prompt_tokens"]
        assert four["completion_tokens"] == 20
        assert four["total_tokens"] == four["prompt_tokens"] + 20
        assert four["prompt_tokens_details"]["cached_tokens"] <= four["prompt_tokens"]

    def test_the_prompt_is_computed_once(self, parrot, http):
        before = parrot.load()
        usage = complete(http, {"prompt": LONG_PROMPT, "max_tokens": 5, "n": 8, "cache_salt": "fresh"})["usage"]
        after = parrot.load()
        found = after.prefix_hit_tokens_total - before.prefix_hit_tokens_total
        blocks = (usage["prompt_tokens"] - 1) // 16 * 16
        assert found == 7 * blocks

    def test_what_is_reserved_is_the_prompt_once_and_every_answer(self, parrot):
        def reserved(**fields):
            body = CompletionRequest(model="test", prompt=[5] * 30, max_tokens=7, **fields)
            job = prepare_completion(parrot.service, body, Caller("somebody"), 0.0)
            return asyncio.run_coroutine_threadsafe(job, parrot.loop).result().reserved_tokens

        assert (reserved(), reserved(n=4), reserved(n=2, best_of=5)) == (37, 58, 65)

    def test_the_best_of_several_are_charged_with_the_others(self, http):
        usage = complete(http, {"prompt": "a b c", "best_of": 5, "n": 2, "max_tokens": 3})["usage"]
        assert usage["completion_tokens"] == 15


class TestBestOf:
    def test_fewer_than_n_are_no_choice(self, http):
        refused(http.post(COMPLETIONS, json={"model": "test", "prompt": "x", "n": 3, "best_of": 2}), param="best_of")

    def test_the_best_cannot_be_told_in_a_stream(self, http):
        body = {"model": "test", "prompt": "x", "n": 1, "best_of": 2, "stream": True}
        refused(http.post(COMPLETIONS, json=body), param="best_of")
        assert read_stream(http, COMPLETIONS, body | {"best_of": 1, "max_tokens": 2}).done

    def test_n_are_given_with_indices_of_their_own(self, http):
        whole = complete(http, {"prompt": ["a", "b"], "n": 2, "best_of": 3, "max_tokens": 2})
        assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3]
        assert all(choice["logprobs"] is None for choice in whole["choices"]), "scored, but nobody asked to see it"

    def test_too_many_for_all_prompts_together_are_refused(self, http):
        body = {"model": "test", "prompt": ["x"] * 50, "n": 3}
        refused(http.post(COMPLETIONS, json=body), param="n", words="128")


class TestNames:
    def test_a_request_id_of_the_callers_is_part_of_the_answers_id(self, http):
        assert complete(http, {"prompt": "x", "request_id": "mine-1"})["id"] == "cmpl-mine-1"
        streamed = read_stream(
            http, CHAT, {"model": "test", "messages": GREETING, "max_tokens": 2, "request_id": "mine-1"}
        )
        assert {event["id"] for event in streamed.events} == {"chatcmpl-mine-1"}

    def test_two_requests_of_one_id_do_not_meet(self, parrot, http):
        """Inside, every request has a name that nobody else can give it."""
        body = {"model": "test", "max_tokens": 60, "request_id": "twin"}
        with parrot.client() as other, other.stream("POST", COMPLETIONS, json=body | {"prompt": "a b", "stream": True}):
            assert complete(http, body | {"prompt": "c d", "max_tokens": 2})["choices"][0]["text"] == "c d"
