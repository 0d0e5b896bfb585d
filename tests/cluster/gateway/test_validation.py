"""Bad input gets a 4xx that names the field, before any SSE byte, and the next request is served as if nothing had
happened."""

from __future__ import annotations

import json
import threading
import time

import pytest

from cluster.gateway.chat_protocol import ChatRequest
from cluster.gateway.foreign_fields import REFUSED
from cluster.gateway.protocol import CompletionRequest
from tests.support.sse import complete, read_stream, refused

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HELLO = {"model": "test", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}

pytestmark = pytest.mark.usefixtures("alive")


class TestBodies:
    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{",
            b"null",
            b"[]",
            b"NaN",
            b'"text"',
            b"[" * 100_000,
            b'{"a":' * 100_000,
            b"\xff\xfe",
            b"\x1f\x8b\x08gzip",
            b'{"model": "test", "messages": [{"role": "user", "content": "\xff"}]}',
            b'{"model": "test", "model": "test", "messages": [{"role": "user", "content": "hi"}]}',
            b'{"model": "test", "messages": [{"role": "user", "content": "hi"}], "temperature": NaN}',
            b'{"model": "test", "messages": [{"role": "user", "content": "hi"}], "temperature": Infinity}',
            b'{"model": "test", "messages": [{"role": "user", "content": "\\ud800"}]}',
            b'{"model": "test", "prompt": "\\ud800"}',
            b'{"model": "test", "prompt": ["ok", "\\ud800"]}',
            b'{"model": "test", "prompt": "ok", "stop": "\\ud800"}',
            b'{"\\ud800": 1}',
            b'{"\\ud800": 1, "\\ud800": 2}',
            b'{"model": "test", "metadata": {"\\ud800": "x"}}',
            b'{"model": "test", "messages": [{"\\ud800": 1}]}',
            b'{"model": "test", "prompt": "ok", "seed": ' + b"1" * 5000 + b"}",
            b'{"model": "test", "prompt": [' + b"1" * 4000 + b"]}",
        ],
    )
    @pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
    def test_what_is_no_request_is_refused(self, http, path, body):
        refused(http.post(path, content=body, headers={"Content-Type": "application/json"}))

    @pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "", "application/xml"])
    def test_another_content_type_is_refused_and_none_is_taken_for_json(self, http, content_type):
        response = http.post(
            CHAT, content=json.dumps(HELLO), headers={"Content-Type": content_type} if content_type else {}
        )
        if content_type:
            refused(response, 415)
        else:
            assert response.status_code == 200

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("Content-Encoding", "gzip"),
            ("Content-Encoding", "br"),
            ("Content-Type", "application/json; charset=latin-1"),
            ("Content-Type", 'application/json; x=y; charset="utf-16"'),
        ],
    )
    def test_another_encoding_is_refused_by_the_name_of_its_header(self, http, name, value):
        headers = {"Content-Type": "application/json"} | {name: value}
        refused(http.post(CHAT, content=json.dumps(HELLO), headers=headers), 415, param=name, words=name)

    @pytest.mark.parametrize("charset", ["utf-8", "UTF8", '"utf-8"'])
    def test_utf8_may_be_named(self, http, charset):
        headers = {"Content-Type": f"application/json; charset={charset}", "Content-Encoding": "identity"}
        assert http.post(CHAT, content=json.dumps(HELLO), headers=headers).status_code == 200

    def test_a_name_that_utf8_cannot_hold_is_shown_escaped(self, http):
        body = b'{"model": "test", "messages": [{"role": "user", "content": "hi"}], "\\ud800": 1}'
        response = http.post(CHAT, content=body)
        assert refused(response, param="\\ud800") == "\\ud800 is not a known field."
        refused(http.post(CHAT, content=json.dumps(HELLO | {"model": "\ud800"})), 404, param="model")

    def test_thousands_of_faults_are_answered_by_one_short_sentence(self, http):
        refused(http.post(CHAT, json=HELLO | {"messages": [{"role": 7}] * 4000}))
        refused(http.post(CHAT, json=HELLO | {"messages": [{"role": 7}] * 12_000}), param="messages")

    def test_a_body_over_the_limit_is_refused(self, http):
        refused(http.post(CHAT, json=HELLO | {"user": "x" * 5_000_000}), 413)

    def test_get_on_a_post_route_and_unknown_routes(self, http):
        refused(http.get(CHAT), 405)
        refused(http.get("/v1/nothing"), 404)

    def test_after_a_failure_the_client_knows_that_the_connection_closes(self, http, parrot, monkeypatch):
        async def fail(_):
            raise RuntimeError("unexpected")

        with monkeypatch.context() as patch:
            patch.setattr(parrot.service, "off_loop", fail)
            response = http.post(CHAT, json=HELLO)
        refused(response, 500)
        assert response.headers["connection"] == "close"
        assert http.post(CHAT, json=HELLO).status_code == 200


FAULTS = [
    ("temperature", "hot"),
    ("temperature", -0.1),
    ("temperature", 2.5),
    ("temperature", True),
    ("top_p", 0),
    ("top_p", 1.1),
    ("top_p", "1"),
    ("top_k", -2),
    ("top_k", 2**63),
    ("top_k", 2**64),
    ("top_k", 1.5),
    ("min_p", -0.1),
    ("min_p", 1.5),
    ("seed", 1.5),
    ("seed", 2**70),
    ("seed", -(2**70)),
    ("max_tokens", 0),
    ("max_tokens", -1),
    ("max_tokens", 1.5),
    ("max_tokens", "4"),
    ("max_tokens", 2**64),
    ("min_tokens", -1),
    ("min_tokens", 2**64),
    ("stop", ""),
    ("stop", [""]),
    ("stop", [1]),
    ("stop", ["x"] * 100),
    ("stop", ["x"] * 500_000),
    ("stop", {"a": 1}),
    ("stop_token_ids", [49152]),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", [2**40]),
    ("stop_token_ids", [2**70]),
    ("stop_token_ids", ["2"]),
    ("stop_token_ids", [1] * 1000),
    ("ignore_eos", "yes"),
    ("stream", "true"),
    ("cache_salt", 5),
    ("model", None),
    ("n", 0),
    ("n", 129),
    ("n", 10_000),
    ("n", 10**9),
    ("n", "1"),
    ("n", 1.0),
    ("best_of", 0),
    ("best_of", 10**9),
    ("logit_bias", {"49152": 5}),
    ("logit_bias", {"-1": 5}),
    ("logit_bias", {"abc": 1}),
    ("logit_bias", {"5": 101}),
    ("logit_bias", {"5": -100.5}),
    ("logit_bias", {"5": None}),
    ("logit_bias", {"5": True}),
    ("logit_bias", {"5": "1"}),
    ("logit_bias", {"5": 1, "05": 1}),
    ("logit_bias", {"٥": 1}),
    ("logit_bias", {"1" * 5000: 1}),
    ("logit_bias", {str(token): 1 for token in range(2000)}),
    ("logit_bias", {str(token): 1 for token in range(100_000)}),
    ("logit_bias", [5]),
    ("allowed_token_ids", []),
    ("allowed_token_ids", [49152]),
    ("allowed_token_ids", [-1]),
    ("allowed_token_ids", [2**70]),
    ("allowed_token_ids", ["5"]),
    ("allowed_token_ids", [5] * 20_000),
    ("bad_words", "word"),
    ("bad_words", [""]),
    ("bad_words", [5]),
    ("bad_words", ["x"] * 129),
    ("bad_words", ["x" * 1025]),
    ("bad_words", ["x"] * 500_000),
    ("presence_penalty", 2.1),
    ("presence_penalty", "0"),
    ("frequency_penalty", -2.1),
    ("repetition_penalty", 0),
    ("repetition_penalty", -1),
    ("prompt_logprobs", -1),
    ("prompt_logprobs", 21),
    ("prompt_logprobs", 0),  # in a stream
    ("truncate_prompt_tokens", 0),
    ("truncate_prompt_tokens", -2),
    ("truncate_prompt_tokens", 1.5),
    ("request_id", ""),
    ("request_id", "a b"),
    ("request_id", "a\n"),
    ("request_id", "x" * 129),
    ("request_id", 7),
    ("skip_special_tokens", 1),
    ("store", True),
    ("use_beam_search", True),
    ("return_token_ids", True),
    ("lora_path", "x"),
    ("stop_regex", "x"),
    ("wholly_unknown", 1),
    ("stream_options", {"include_usage": True}),
    ("stream_options", {"unknown": 1}),
    ("stream_options", {"continuous_usage_stats": True}),
    ("logprobs", 10**6),
    ("metadata", {str(number): "x" for number in range(20_000)}),
]
NULLS = sorted({*REFUSED, *ChatRequest.model_fields, *CompletionRequest.model_fields})


class TestFields:
    @pytest.mark.parametrize("field", dict(FAULTS))
    @pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
    def test_a_wrong_value_is_refused_by_the_name_of_its_field(self, http, path, field):
        body = dict(HELLO) if path == CHAT else {"model": "test", "prompt": "hello", "max_tokens": 2}
        body["stream"] = field not in ("stream", "stream_options")
        for value in (value for name, value in FAULTS if name == field):
            started = time.monotonic()
            message = refused(http.post(path, json=body | {field: value}))
            assert field in message
            assert time.monotonic() - started < 2

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("n", 1),
            ("presence_penalty", 0),
            ("frequency_penalty", 0.0),
            ("logprobs", None),
            ("user", "me"),
            ("logit_bias", {}),
            ("prompt_cache_key", "mine"),
            ("safety_identifier", "me"),
            ("store", False),
            ("use_beam_search", False),
            ("response_format", {"type": "text"}),
            ("bad_words", []),
            ("top_k", -1),
            ("top_k", 0),
            ("top_k", 10**6),
            ("seed", -5),
            ("metadata", {"a": "b"}),
        ],
    )
    def test_a_value_that_changes_nothing_is_accepted(self, http, field, value):
        assert http.post(CHAT, json=HELLO | {field: value}).status_code == 200

    @pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
    def test_null_means_not_given(self, http, path):
        body = dict(HELLO) if path == CHAT else {"model": "test", "prompt": "hello", "max_tokens": 2}
        nulls = dict.fromkeys(field for field in NULLS if field not in ("messages", "prompt"))
        response = http.post(path, json=nulls | body)
        assert response.status_code == 200, response.text
        for field in body.keys() & {"model", "messages", "prompt"}:
            refused(http.post(path, json=body | {field: None}), param=field)

    def test_null_is_no_excuse_for_an_unknown_field(self, http):
        refused(http.post(CHAT, json=HELLO | {"wholly_unknown": None}), param="wholly_unknown")

    def test_the_newer_name_of_the_limit_is_the_one_that_is_blamed(self, http):
        body = {"model": "test", "messages": HELLO["messages"], "max_completion_tokens": 0}
        refused(http.post(CHAT, json=body), param="max_completion_tokens", words="max_completion_tokens is 0")

    def test_an_unknown_model_is_a_404(self, http):
        message = refused(http.post(CHAT, json=HELLO | {"model": "gpt-5"}), 404, "model")
        assert "test" in message


class TestMessages:
    @pytest.mark.parametrize(
        "messages",
        [
            [],
            "hello",
            [[]],
            [{"content": "hi"}],
            [{"role": "wizard", "content": "hi"}],
            [{"role": "user"}],
            [{"role": "user", "content": None}],
            [{"role": "user", "content": 5}],
            [{"role": "user", "content": [5]}],
            [{"role": "user", "content": [{"type": "video", "video": "x"}]}],
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}],
            [{"role": "user", "content": [{"type": "text", "text": "hi"}] * 20_000}],
            [{"role": "user", "content": "hi", "tool_calls": [{}] * 20_000}],
            [{"role": "user", "content": "hi"} | {f"key {number}": 1 for number in range(20_000)}],
            [{"role": "assistant", "content": "hi", "audio": {"id": "1"}}],
            [{"role": "assistant", "content": "hi", "annotations": [{"type": "url_citation"}]}],
            [{"role": "user", "content": "hi", "extra": 1}],
            [{"role": "assistant", "content": None}],
        ],
    )
    def test_a_wrong_message_is_refused(self, http, messages):
        response = http.post(CHAT, json=HELLO | {"messages": messages})
        assert refused(response)
        assert response.json()["error"]["param"].startswith("messages")

    def test_a_field_of_a_message_is_refused_by_its_whole_path(self, http):
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "audio": {"id": "1"}}]
        refused(http.post(CHAT, json=HELLO | {"messages": messages}), param="messages.1.audio", words="not supported")
        messages[1] = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}
        refused(http.post(CHAT, json=HELLO | {"messages": messages}), param="messages.1.content.0.image_url")

    def test_an_answer_of_the_openai_client_may_be_sent_back(self, openai):
        messages = list(HELLO["messages"])
        reply = openai.chat.completions.create(model="test", messages=messages, max_tokens=3).choices[0].message
        messages += [reply.model_dump(), {"role": "user", "content": "Go on."}]
        assert openai.chat.completions.create(model="test", messages=messages, max_tokens=3).usage.completion_tokens
        messages[1] |= {"annotations": [], "refusal": None}  # as OpenAI's own server fills them
        assert openai.chat.completions.create(model="test", messages=messages, max_tokens=3).usage.completion_tokens

    @pytest.mark.parametrize("content", ["", [], [{"type": "text", "text": ""}]])
    def test_empty_content_is_a_message_all_the_same(self, http, content):
        messages = [{"role": "user", "content": content}]
        assert http.post(CHAT, json=HELLO | {"messages": messages}).status_code == 200

    def test_text_parts_mean_the_same_as_their_text(self, http):
        parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
        plain, split = (
            http.post(CHAT, json=HELLO | {"messages": [{"role": "user", "content": content}]}).json()
            for content in ("hello", parts)
        )
        assert plain["usage"]["prompt_tokens"] == split["usage"]["prompt_tokens"]


class TestPrompts:
    @pytest.mark.parametrize(
        "prompt",
        [
            [-1],
            [[-1]],
            [49152],
            [2**63],
            [2**100],
            [1.5],
            [True],
            [[1], []],
            [1, "a"],
            [1, None],
            [1, [[[]]]],
            [[1], [None]],
            [[1], ["a"]],
            [[[1]]],
            ["a", 1],
            [],
            [[]],
            "",
            [""],
            ["ok", ""],
            None,
            {},
            5,
            ["x"] * 100_000,
        ],
    )
    def test_a_wrong_prompt_is_refused_while_others_stream(self, http, parrot, prompt):
        body = {"model": "test", "prompt": "an undisturbed stream", "max_tokens": 100, "temperature": 0}
        results = []
        with parrot.client() as other:
            thread = threading.Thread(target=lambda: results.append(read_stream(other, COMPLETIONS, body)))
            thread.start()
            refused(http.post(COMPLETIONS, json={"model": "test", "prompt": prompt}), param="prompt")
            thread.join()
        assert results[0].texts[0] == complete(http, body)["choices"][0]["text"]

    def test_the_last_token_of_the_vocabulary_is_served(self, http):
        assert complete(http, {"prompt": [49151], "max_tokens": 3})["usage"]["completion_tokens"] == 3


class TestContextLength:
    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize(
        ("prompt", "asked"), [(500, 13), (512, None), (512, 1), (513, 1), (10_000, 1), (10_000, None)]
    )
    def test_what_cannot_fit_is_refused_with_the_three_numbers(self, http, prompt, asked, stream):
        body = {"model": "test", "prompt": [5] * prompt, "max_tokens": asked, "stream": stream}
        response = http.post(COMPLETIONS, json=body)
        message = refused(response, param="prompt")
        assert response.json()["error"]["code"] == "context_length_exceeded"
        assert "512 tokens" in message
        assert f"{prompt} tokens" in message
        assert f"{asked or 'at least 1'} for the answer" in message

    @pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
    def test_a_text_that_is_far_too_long_is_refused_by_its_length(self, http, path):
        text = "word " * 500_000
        body = HELLO | {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
        response = http.post(path, json={"model": "test"} | body)
        assert "at least" in refused(response, words="512 tokens")
        assert response.json()["error"]["code"] == "context_length_exceeded"

    def test_an_exact_fit_is_served(self, http):
        assert complete(http, {"prompt": [5] * 500, "max_tokens": 12})["usage"]["total_tokens"] == 512

    def test_an_open_limit_fills_the_rest(self, http):
        rest = complete(http, {"prompt": [5] * 505})["usage"]
        assert rest["completion_tokens"] == 7
        messages = [{"role": "user", "content": "hello " * 400}]
        chat = http.post(CHAT, json={"model": "test", "messages": messages, "ignore_eos": True}).json()["usage"]
        assert chat["total_tokens"] == 512

    def test_a_chat_that_is_too_long_is_refused(self, http):
        messages = [{"role": "user", "content": "hello " * 600}]
        refused(http.post(CHAT, json=HELLO | {"messages": messages}), param="messages", words="512 tokens")
