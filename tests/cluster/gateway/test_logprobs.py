"""Log probabilities, as clients see them, over a parrot whose own are known: `parrot_logprobs`."""

from __future__ import annotations

import json
from math import inf, nan

import pytest

from cluster.gateway.logprobs import CompletionLogprobs, chat_logprobs, prompt_logprobs, spelling
from cluster.gateway.text_stream import ScoredToken, TextRules, TextStream
from replicas.messages import TokenLogprobs
from replicas.text.stops import StopStrings
from tests.support.builders import parrot_logprobs
from tests.support.sse import complete, read_stream, refused

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
NASTY = "🫠🥹龜 ďábel 안녕 naïve café end"


@pytest.fixture(scope="module")
def tokenizer(parrot):
    return parrot.service.models["test"].tokenizer


def merged_lists(streamed):
    """The lists of a completion stream's logprobs, joined."""
    portions = [event["choices"][0]["logprobs"] for event in streamed.events if event["choices"]]
    names = ("text_offset", "token_logprobs", "tokens", "top_logprobs")
    return {name: [entry for portion in portions if portion for entry in portion[name]] for name in names}


def merged_content(streamed):
    """The entries of a chat stream's logprobs, joined."""
    found = [event["choices"][0]["logprobs"] for event in streamed.events if event["choices"]]
    return [entry for logprobs in found if logprobs for entry in logprobs["content"]]


class TestCompletions:
    @pytest.mark.parametrize("fields", [{}, {"stop": "aïve c"}, {"stop": "aïve c", "include_stop_str_in_output": True}])
    @pytest.mark.parametrize("top", [0, 3])
    def test_a_stream_adds_up_to_the_whole_and_the_tokens_to_the_text(self, http, tokenizer, top, fields):
        ids = tokenizer.encode(NASTY, add_bos=False, parse_special=True)
        body = {"model": "test", "prompt": ids, "max_tokens": len(ids), "logprobs": top} | fields
        whole = complete(http, body)
        logprobs, text = whole["choices"][0]["logprobs"], whole["choices"][0]["text"]
        streamed = read_stream(http, COMPLETIONS, body)
        assert merged_lists(streamed) == logprobs
        assert streamed.texts[0] == text
        count = whole["usage"]["completion_tokens"]
        assert logprobs["tokens"] == [spelling(tokenizer, token_id) for token_id in ids[:count]]
        assert logprobs["token_logprobs"] == [parrot_logprobs(token_id, 0).logprob for token_id in ids[:count]]
        for token_id, found in zip(ids, logprobs["top_logprobs"], strict=False):
            expected = parrot_logprobs(token_id, top).top or ((token_id, parrot_logprobs(token_id, 0).logprob),)
            assert found == {spelling(tokenizer, other): logprob for other, logprob in expected}
        for spelled, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
            if not spelled.startswith("bytes:") and offset + len(spelled) <= len(text):
                assert text[offset : offset + len(spelled)] == spelled

    def test_a_stop_token_is_scored_and_adds_no_text(self, http):
        whole = complete(http, {"prompt": [504, 2988, 3003], "stop_token_ids": [3003], "logprobs": 0})
        assert len(whole["choices"][0]["logprobs"]["tokens"]) == 3
        assert whole["choices"][0]["logprobs"]["text_offset"][-1] == len(whole["choices"][0]["text"])

    def test_the_openai_client_reads_them(self, openai):
        answer = openai.completions.create(model="test", prompt="a b", max_tokens=2, logprobs=2, echo=True)
        assert answer.choices[0].logprobs.token_logprobs[0] is None
        assert answer.choices[0].logprobs.tokens == ["a", " b", "a", " b"]
        assert answer.choices[0].logprobs.text_offset == [0, 1, 3, 4]

    def test_without_asking_there_are_none(self, http):
        assert complete(http, {"prompt": "a b"})["choices"][0]["logprobs"] is None


class TestEcho:
    @pytest.mark.parametrize("length", [15, 16, 17, 49, 130])
    def test_a_prompt_is_scored_without_an_answer_cached_or_not(self, http, length):
        ids = list(range(1000, 1000 + length))
        body = {"prompt": ids, "echo": True, "max_tokens": 0, "logprobs": 2, "cache_salt": f"echo {length}"}
        first, second = (complete(http, body) for _ in range(2))
        assert first["choices"] == second["choices"]
        (choice,) = first["choices"]
        assert choice["finish_reason"] == "length"
        assert choice["logprobs"]["token_logprobs"] == [None, *(parrot_logprobs(i, 0).logprob for i in ids[1:])]
        assert choice["logprobs"]["top_logprobs"][0] is None
        assert [len(top) for top in choice["logprobs"]["top_logprobs"][1:]] == [2] * (length - 1)
        assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
        assert first["usage"] | {"prompt_tokens_details": None} == {
            "prompt_tokens": length,
            "completion_tokens": 0,
            "total_tokens": length,
            "prompt_tokens_details": None,
        }

    @pytest.mark.parametrize("logprobs", [None, 1])
    @pytest.mark.parametrize("n", [1, 2])
    def test_the_prompt_stands_before_each_answer_streamed_and_whole(self, http, logprobs, n):
        body = {"model": "test", "prompt": ["say this", NASTY], "echo": True, "max_tokens": 2, "n": n}
        body |= {"logprobs": logprobs}
        whole, streamed = complete(http, body), read_stream(http, COMPLETIONS, body)
        assert [choice["text"] for choice in whole["choices"][:n]] == ["say thissay this"] * n
        for index, choice in enumerate(whole["choices"]):
            assert choice["text"].startswith(body["prompt"][index // n])
            assert streamed.texts[index] == choice["text"]
            if logprobs is None:
                continue
            offsets = choice["logprobs"]["text_offset"]
            assert offsets == sorted(offsets)
            assert offsets[-2] >= len(body["prompt"][index // n])

    def test_the_text_is_the_callers_own_with_the_control_tokens_that_it_spells(self, http):
        prompt = "<|im_start|>user\nhi<|im_end|>"
        whole = complete(http, {"prompt": prompt, "echo": True, "max_tokens": 0, "logprobs": 0})
        assert whole["choices"][0]["text"] == prompt
        assert whole["choices"][0]["logprobs"]["text_offset"][1] == len("<|im_start|>")

    def test_an_empty_answer_needs_an_echo(self, http):
        refused(http.post(COMPLETIONS, json={"model": "test", "prompt": "x", "max_tokens": 0}), param="max_tokens")

    def test_what_was_cut_off_the_prompt_is_not_echoed(self, http, tokenizer):
        body = {"prompt": "one two three four", "echo": True, "max_tokens": 0, "truncate_prompt_tokens": 2}
        whole = complete(http, body)
        assert (whole["choices"][0]["text"], whole["usage"]["prompt_tokens"]) == (" three four", 2)


class TestPromptLogprobs:
    def test_completions_have_them_in_the_choice_by_token_id(self, http):
        whole = complete(http, {"prompt": [7, 8, 9], "max_tokens": 1, "prompt_logprobs": 1})
        entries = whole["choices"][0]["prompt_logprobs"]
        assert entries[0] is None
        assert [list(entry) for entry in entries[1:]] == [["8"], ["9"]]
        assert entries[1]["8"]["logprob"] == parrot_logprobs(8, 1).logprob
        assert entries[1]["8"]["rank"] == 1

    def test_chats_have_them_once_for_all_choices(self, http):
        body = {"model": "test", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "n": 2}
        whole = http.post(CHAT, json=body | {"prompt_logprobs": 0}).json()
        assert len(whole["prompt_logprobs"]) == whole["usage"]["prompt_tokens"]
        assert whole["prompt_logprobs"][0] is None
        assert all(len(entry) == 1 for entry in whole["prompt_logprobs"][1:])


class TestChat:
    @pytest.mark.parametrize("fields", [{}, {"stop": "ser"}, {"top_logprobs": 2}])
    def test_a_stream_adds_up_to_the_whole_and_the_bytes_to_the_text(self, http, fields):
        body = {"model": "test", "messages": [{"role": "user", "content": NASTY}], "max_tokens": 30, "logprobs": True}
        body |= {"skip_special_tokens": False, "ignore_eos": True} | fields
        response = http.post(CHAT, json=body)
        assert response.status_code == 200, response.text
        (choice,) = response.json()["choices"]
        entries = choice["logprobs"]["content"]
        assert merged_content(read_stream(http, CHAT, body)) == entries
        assert len(entries) == response.json()["usage"]["completion_tokens"]
        shown = b"".join(bytes(entry["bytes"]) for entry in entries).decode("utf-8", "replace")
        if "stop" in fields:
            assert shown.startswith(choice["message"]["content"] + "s")
        else:
            assert shown == choice["message"]["content"]
        for entry in entries:
            assert len(entry["top_logprobs"]) == fields.get("top_logprobs", 0)
            if entry["top_logprobs"]:
                assert entry["top_logprobs"][0] == {name: entry[name] for name in ("token", "logprob", "bytes")}

    def test_what_is_not_shown_has_no_bytes(self, http):
        """The parrot begins with the template's own <|im_start|>."""
        body = {"model": "test", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "logprobs": True}
        first = http.post(CHAT, json=body).json()["choices"][0]["logprobs"]["content"][0]
        assert (first["token"], first["bytes"]) == ("<|im_start|>", None)

    def test_alternatives_need_log_probabilities(self, http):
        body = {"model": "test", "messages": [{"role": "user", "content": "hi"}], "top_logprobs": 3}
        refused(http.post(CHAT, json=body), param="top_logprobs")
        refused(http.post(CHAT, json=body | {"logprobs": True, "top_logprobs": 21}), param="top_logprobs")

    def test_the_openai_client_reads_them(self, openai):
        messages = [{"role": "user", "content": "hi"}]
        answer = openai.chat.completions.create(
            model="test", messages=messages, max_tokens=3, logprobs=True, top_logprobs=2
        )
        assert len(answer.choices[0].logprobs.content) == 3
        assert len(answer.choices[0].logprobs.content[0].top_logprobs) == 2


class TestRendering:
    """What no parrot says."""

    @pytest.mark.parametrize("logprob", [-inf, inf, nan])
    def test_numbers_that_json_lacks_become_very_small(self, tokenizer, logprob):
        token = ScoredToken(5, TokenLogprobs(logprob, ((6, logprob),)), b"x")
        rendered = (
            chat_logprobs(tokenizer, [token]),
            CompletionLogprobs(tokenizer).portion([token]),
            prompt_logprobs(tokenizer, [5], (token.logprobs,), 1),
        )
        assert json.dumps(rendered, allow_nan=False).count("-9999.0") == 7

    def test_parts_of_a_character_are_told_apart(self, tokenizer):
        ids = tokenizer.encode("🫠", add_bos=False, parse_special=True)
        assert len(ids) > 1
        spellings = [spelling(tokenizer, token_id) for token_id in ids]
        assert len(set(spellings)) == len(ids)
        assert spellings[0].startswith("bytes:\\xf0")

    def test_a_row_of_the_model_beyond_the_vocabulary_is_nothing(self, tokenizer):
        assert spelling(tokenizer, 10**6) == ""
        stream = TextStream(tokenizer, TextRules())
        assert stream.push([10**6], "length", [TokenLogprobs(-1.0)]) == ""
        assert stream.take_scored()[0].shown is None

    def test_tokens_are_given_once_with_the_text_or_after_it(self, tokenizer):
        stream = TextStream(tokenizer, TextRules(stops=StopStrings(["two three"])))
        ids = tokenizer.encode("one two four", add_bos=False, parse_special=True)
        given = []
        for token_id in ids:
            stream.push([token_id], None, [TokenLogprobs(-1.0)])
            given += stream.take_scored()
        assert [token.token_id for token in given] == ids
        assert stream.take_scored() == ()
