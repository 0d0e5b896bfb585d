"""A stream adds up to the answer that the same request gets without streaming."""

from __future__ import annotations

import pytest

from tests.support.sse import complete, read_stream

NASTY = "🫠🥹龜 ďábel 안녕 👨\u200d👩\u200d👧 naïve café \u202etxet\u202c end"


@pytest.fixture(scope="module")
def nasty_length(parrot):
    with parrot.client() as client:
        return complete(client, {"prompt": NASTY, "max_tokens": 1})["usage"]["prompt_tokens"]


class TestCharacters:
    def test_every_cut_gives_the_same_text_streamed_and_whole(self, http, nasty_length):
        whole_text = complete(http, {"prompt": NASTY, "max_tokens": nasty_length})["choices"][0]["text"]
        assert whole_text == NASTY
        for cut in range(1, nasty_length + 1):
            body = {"model": "test", "prompt": NASTY, "max_tokens": cut, "temperature": 0}
            whole = complete(http, body)["choices"][0]["text"]
            streamed = read_stream(http, "/v1/completions", body)
            assert streamed.texts[0] == whole
            assert "\ufffd" not in whole.rstrip("\ufffd"), "a broken character in the middle"
            assert whole_text.startswith(whole.rstrip("\ufffd"))

    def test_no_event_breaks_a_character(self, http):
        streamed = read_stream(http, "/v1/completions", {"model": "test", "prompt": NASTY, "max_tokens": 300})
        assert all("\ufffd" not in event["choices"][0]["text"] for event in streamed.events[:-1])


class TestShape:
    @pytest.mark.parametrize("options", [None, {"include_usage": False}, {"include_usage": True}])
    @pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
    def test_one_finish_reason_then_usage_if_asked_then_done(self, http, path, options):
        body = {"model": "test", "max_tokens": 6, "stream_options": options}
        body |= {"prompt": "a b c"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "hi"}]}
        streamed = read_stream(http, path, body)
        assert streamed.done
        assert streamed.reasons == {0: "length"}
        asked = bool(options and options["include_usage"])
        assert (streamed.usage is not None) == asked
        assert all(event.get("usage") is None for event in streamed.events[:-1])
        assert all(("usage" in event) == asked for event in streamed.events), "null until the end, as OpenAI sends it"
        assert (streamed.events[-1]["choices"] == []) == asked
        assert len({event["id"] for event in streamed.events}) == 1

    def test_a_chat_stream_begins_with_the_role_once(self, http):
        streamed = read_stream(
            http,
            "/v1/chat/completions",
            {"model": "test", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5},
        )
        assert streamed.roles == {0: 1}
        assert streamed.events[0]["choices"][0]["delta"]["role"] == "assistant"
        empty = [event for event in streamed.events if event["choices"][0]["delta"].get("content") == ""]
        assert len(empty) == 1, "only the role chunk is empty"

    def test_the_openai_client_reads_both_kinds_alike(self, openai):
        messages = [{"role": "user", "content": "What is a mobula?"}]
        asked = {"model": "test", "messages": messages, "max_tokens": 9, "temperature": 0}
        whole = openai.chat.completions.create(**asked)
        chunks = list(openai.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
        assert (
            "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
        )
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 9
        assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens

    def test_a_batch_of_prompts_ends_each_choice_once(self, http):
        prompts = ["one two three", "four five six", NASTY]
        body = {"model": "test", "prompt": prompts, "max_tokens": 12, "temperature": 0}
        streamed = read_stream(http, "/v1/completions", body | {"stream_options": {"include_usage": True}})
        whole = complete(http, body)
        assert streamed.reasons == dict.fromkeys(range(3), "length")
        assert [streamed.texts[index] for index in range(3)] == [choice["text"] for choice in whole["choices"]]
        assert streamed.usage["completion_tokens"] == whole["usage"]["completion_tokens"] == 36


class TestUsage:
    @pytest.mark.parametrize("n", [1, 2])
    @pytest.mark.parametrize("max_tokens", [1, 7, 40])
    def test_streamed_usage_equals_whole_usage_when_the_prompt_is_chunked(self, http, max_tokens, n):
        body = {"model": "test", "prompt": "word " * 300, "max_tokens": max_tokens, "n": n}
        body["cache_salt"] = f"usage {max_tokens} {n}"
        streamed = read_stream(http, "/v1/completions", body | {"stream_options": {"include_usage": True}})
        whole = complete(http, body)["usage"]
        assert whole["completion_tokens"] == n * max_tokens
        assert streamed.usage["completion_tokens"] == n * max_tokens
        assert streamed.usage["prompt_tokens"] == whole["prompt_tokens"]
        assert streamed.events[0]["choices"][0]["text"], "an event came before the first token"

    def test_cached_tokens_are_whole_blocks_and_leave_something_to_compute(self, http):
        for length in (15, 16, 17, 32):
            body = {"prompt": [1000 + length] * length, "max_tokens": 1, "cache_salt": f"cached {length}"}
            first, second = (complete(http, body)["usage"] for _ in range(2))
            assert first["prompt_tokens_details"] == {"cached_tokens": 0}
            assert second["prompt_tokens_details"] == {"cached_tokens": (length - 1) // 16 * 16}


class TestSharing:
    def test_one_event_a_token_when_sharing_is_off(self, parrot, http, monkeypatch):
        monkeypatch.setattr(parrot.service, "settings", type(parrot.service.settings)(share_events=False))
        body = {"model": "test", "prompt": "alpha beta gamma delta", "max_tokens": 50}
        streamed = read_stream(http, "/v1/completions", body)
        assert len(streamed.events) == 50

    def test_events_are_json_with_the_text_quoted(self, http):
        text = 'say "hi" \\ back\n\ttab \u2028 \x00 </script>'
        length = complete(http, {"prompt": text, "max_tokens": 1})["usage"]["prompt_tokens"]
        body = {"model": "test", "prompt": text, "max_tokens": length, "temperature": 0}
        assert read_stream(http, "/v1/completions", body).texts[0] == text
