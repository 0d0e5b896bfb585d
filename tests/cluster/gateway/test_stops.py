"""Stop strings, stop tokens and min_tokens, streamed and whole."""

from __future__ import annotations

import pytest

from tests.support.sse import complete, read_stream

TEXT = "The quick brown fox jumps over the lazy dog near 안녕 riverbanks."


def both_ways(http, body):
    """The text and reason of a request, which must not depend on streaming."""
    body = {"model": "test", "prompt": TEXT, "max_tokens": 30, "temperature": 0} | body
    whole = complete(http, body)
    streamed = read_stream(http, "/v1/completions", body | {"stream_options": {"include_usage": True}})
    choice = whole["choices"][0]
    assert streamed.texts[0] == choice["text"]
    assert streamed.reasons[0] == choice["finish_reason"]
    assert streamed.usage["completion_tokens"] == whole["usage"]["completion_tokens"]
    return choice["text"], choice["finish_reason"], whole["usage"]["completion_tokens"]


class TestStopStrings:
    @pytest.mark.parametrize("stop", ["own fox jum", "ck br", "T", "안녕", "녕 ri", ".The quick", " lazy dog near"])
    def test_the_text_ends_just_before_the_stop_wherever_tokens_end(self, http, stop):
        endless = TEXT * 3
        text, reason, _ = both_ways(http, {"stop": stop})
        assert (text, reason) == (endless[: endless.index(stop)], "stop")

    @pytest.mark.parametrize("stop", ["own fox jum", "안녕"])
    def test_the_stop_is_kept_when_asked_for(self, http, stop):
        text, reason, _ = both_ways(http, {"stop": stop, "include_stop_str_in_output": True})
        assert (text, reason) == (TEXT[: TEXT.index(stop) + len(stop)], "stop")

    def test_what_looked_like_a_stop_is_sent_in_the_end(self, http):
        text, reason, _ = both_ways(http, {"stop": "The quick brown fox jumps over the lazy cat", "max_tokens": 8})
        assert TEXT.startswith(text)
        assert text.startswith("The quick brown fox jumps")
        assert reason == "length"

    def test_the_earliest_of_several_stops_wins(self, http):
        text, _, _ = both_ways(http, {"stop": ["fox jumps", "fox", "never"]})
        assert text == "The quick brown "

    def test_tokens_after_the_stop_are_not_charged_for(self, http):
        _, _, charged = both_ways(http, {"stop": "brown"})
        assert charged == 3


class TestMinTokens:
    def test_a_stop_string_before_the_threshold_stays_in_the_text(self, http):
        text, reason, count = both_ways(http, {"stop": "quick", "min_tokens": 20, "max_tokens": 60})
        assert text.startswith("The quick brown")
        assert text.count("quick") == 1
        assert reason == "stop"
        assert count >= 20

    def test_more_than_max_tokens_is_refused(self, http):
        body = {"model": "test", "prompt": "x", "min_tokens": 9, "max_tokens": 8}
        response = http.post("/v1/completions", json=body)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "min_tokens"


class TestStopTokens:
    def test_a_stop_token_ends_the_text_and_is_counted_but_not_shown(self, http):
        body = {"prompt": [504, 2988, 3003, 4005], "stop_token_ids": [3003]}
        text, reason, count = both_ways(http, body)
        shown = complete(http, {"prompt": body["prompt"], "max_tokens": 2})["choices"][0]["text"]
        assert (text, reason, count) == (shown, "stop", 3)

    def test_eos_ends_the_text_unless_ignored(self, http):
        body = {"prompt": [504, 2, 2988], "max_tokens": 7}
        assert both_ways(http, body)[1:] == ("stop", 2)
        assert both_ways(http, body | {"ignore_eos": True})[1:] == ("length", 7)
