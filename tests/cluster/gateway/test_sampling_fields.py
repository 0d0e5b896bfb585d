"""What the sampler is told of a request's fields."""

from __future__ import annotations

import pytest

from cluster.gateway.protocol import CompletionRequest
from cluster.gateway.sampling import sampling_params
from cluster.gateway.text_stream import TextRules, TextStream
from replicas.messages import FinishReason
from replicas.text.stop_scope import StopScope
from replicas.text.stops import StopStrings
from tests.support.sse import complete, refused


@pytest.fixture(scope="module")
def model(parrot):
    return parrot.service.models["test"]


def told(model, **fields):
    body = CompletionRequest.model_validate({"model": "test", "prompt": "x"} | fields, strict=True)
    return sampling_params(body, model, 10, None)


class TestDefaults:
    def test_they_are_openais(self, model):
        params = told(model)
        assert (params.temperature, params.top_p, params.top_k, params.min_p) == (1.0, 1.0, 0, 0.0)
        assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (0.0, 0.0, 1.0)
        assert (params.logit_bias, params.allowed_token_ids, params.bad_words) == ((), (), ())
        assert (params.logprobs, params.prompt_logprobs, params.grammar) == (None, None, None)

    def test_a_seed_is_drawn_for_each_request(self, model):
        assert told(model).seed != told(model).seed
        assert told(model, seed=-1).seed == told(model, seed=2**63 - 1).seed


class TestTokens:
    def test_keys_of_a_bias_are_token_ids(self, model):
        assert told(model, logit_bias={"5": -100, "49151": 1.5}).logit_bias == ((5, -100), (49151, 1.5))

    def test_a_bad_word_is_each_of_its_usual_spellings(self, model):
        words = told(model, bad_words=["lazy dog", " fox"]).bad_words
        spelled = {b"".join(model.tokenizer.token_bytes[i] for i in word).decode() for word in words}
        assert spelled == {"lazy dog", " lazy dog", " fox", "  fox"}
        assert len(words) == len(set(words))

    def test_a_bad_word_may_spell_a_control_token(self, model):
        assert (2,) in told(model, bad_words=["<|im_end|>"]).bad_words

    def test_allowed_tokens_count_once(self, model):
        assert told(model, allowed_token_ids=[7, 5, 7]).allowed_token_ids == (7, 5)


class TestScores:
    def test_the_echo_is_scored_like_the_answer(self, model):
        assert told(model, echo=True, logprobs=3).prompt_logprobs == 3
        assert told(model, echo=True).prompt_logprobs is None
        assert told(model, logprobs=3).prompt_logprobs is None
        assert told(model, echo=True, logprobs=1, prompt_logprobs=4).prompt_logprobs == 4

    def test_answers_are_scored_where_the_best_is_wanted(self, model):
        assert told(model, best_of=2).logprobs == 0
        assert told(model, best_of=1).logprobs is None


class TestTruncation:
    @pytest.mark.parametrize(("kept", "tokens"), [(1, 1), (3, 3), (100, 5), (-1, 5)])
    def test_the_last_tokens_are_kept(self, http, kept, tokens):
        body = {"prompt": [11, 12, 13, 14, 15], "truncate_prompt_tokens": kept, "max_tokens": 1}
        assert complete(http, body)["usage"]["prompt_tokens"] == tokens

    def test_as_many_as_fit(self, http):
        body = {"prompt": "word " * 2000, "max_tokens": 12, "truncate_prompt_tokens": -1}
        assert complete(http, body)["usage"]["total_tokens"] == 512

    def test_a_chat_may_be_cut_as_well(self, http):
        messages = [{"role": "user", "content": "word " * 2000}]
        body = {"model": "test", "messages": messages, "max_tokens": 2, "truncate_prompt_tokens": 20}
        assert http.post("/v1/chat/completions", json=body).json()["usage"]["prompt_tokens"] == 20

    def test_one_that_is_still_too_long_is_refused(self, http):
        body = {"model": "test", "prompt": "word " * 2000, "truncate_prompt_tokens": 600, "max_tokens": 1}
        refused(http.post("/v1/completions", json=body), param="prompt", words="600 tokens")


class TestText:
    def test_special_tokens_are_shown_when_asked_for(self, http):
        body = {"prompt": [1, 504, 17], "max_tokens": 3}
        hidden = complete(http, body)["choices"][0]["text"]
        assert "<|im_start|>" not in hidden
        shown = complete(http, body | {"skip_special_tokens": False})["choices"][0]["text"]
        assert shown.startswith("<|im_start|>" + hidden)

    @pytest.mark.parametrize("size", [1, 2, 50])
    def test_stops_count_in_their_scope_only(self, model, size):
        """A stop string cuts no reasoning, and none in the marker that ends it."""
        text = "<think>plan X\nstep</think>answer\nmore"
        rules = TextRules(
            stops=StopStrings(["\n", "ink>a"]), stop_scope=lambda: StopScope("<think>", "</think>", is_open=False)
        )
        stream, ids = (
            TextStream(model.tokenizer, rules),
            model.tokenizer.encode(text, add_bos=False, parse_special=True),
        )
        pushed = ""
        for start in range(0, len(ids), size):
            reason: FinishReason | None = "length" if start + size >= len(ids) else None
            pushed += stream.push(ids[start : start + size], reason)
            if stream.finish_reason is not None:
                break
        assert (pushed, stream.finish_reason) == ("<think>plan X\nstep</think>answer", "stop")
