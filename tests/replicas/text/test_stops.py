"""A text ends before its first stop string, and nothing but a possible beginning of one is ever held back."""

from __future__ import annotations

import time
import tracemalloc
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicas.text.stops import StopChecker, StopStrings

texts = st.text(alphabet="abé🙂\n")
stop_lists = st.lists(st.text(alphabet="abé🙂\n", min_size=1, max_size=5), max_size=4)


def first_stop(text: str, stops: list[str]) -> str | None:
    """The stop string that is complete first, the longest of those: found by trying every end."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return max(complete, key=len)
    return None


def run(checker: StopChecker, pieces: list[str]) -> str:
    return "".join([checker.push(piece) for piece in pieces]) + checker.finish()


@given(pieces=st.lists(texts), stops=stop_lists, include=st.booleans())
def test_every_way_to_cut_a_text_gives_the_same(pieces: list[str], stops: list[str], include: bool) -> None:
    text = "".join(pieces)
    stop = first_stop(text, stops)
    expected = text if stop is None else text[: text.index(stop)] + stop * include
    checker = StopChecker(StopStrings(stops, include=include))
    assert run(checker, pieces) == expected
    assert checker.matched == stop
    assert checker.stopped == (stop is not None)


@given(text=texts, stops=stop_lists)
def test_holds_back_no_more_than_could_still_become_a_stop_string(text: str, stops: list[str]) -> None:
    checker, sent = StopChecker(StopStrings(stops)), ""
    for index, character in enumerate(text):
        sent += checker.push(character)
        if checker.stopped:
            return
        held = text[len(sent) : index + 1]
        assert held == "" or any(stop.startswith(held) for stop in stops)
        assert not any(stop.startswith(text[start : index + 1]) for stop in stops for start in range(len(sent)))


class TestABeginningOfAStopString:
    def test_is_held_back_over_several_tokens(self) -> None:
        checker = StopChecker(StopStrings(["\nUser:"]))
        assert [checker.push(piece) for piece in ("Hi", "\nUs", "er", ": x")] == ["Hi", "", "", ""]
        assert checker.stopped
        assert checker.finish() == ""

    def test_is_sent_once_the_text_goes_another_way(self) -> None:
        checker = StopChecker(StopStrings(["\nUser:"]))
        assert [checker.push(piece) for piece in ("Hi\nUs", "ual")] == ["Hi", "\nUsual"]

    def test_is_flushed_at_the_end(self) -> None:
        checker = StopChecker(StopStrings(["\nUser:"]))
        assert checker.push("Hi\nUser") == "Hi"
        assert checker.finish() == "\nUser"
        assert not checker.stopped

    def test_may_overlap_itself(self) -> None:
        checker = StopChecker(StopStrings(["aab"]))
        assert [checker.push(piece) for piece in ("aa", "a", "a", "b")] == ["", "a", "a", ""]
        assert checker.stopped


class TestOfSeveralStopStrings:
    def test_the_one_complete_first_wins(self) -> None:
        checker = StopChecker(StopStrings(["abcd", "bc"]))
        assert checker.push("xabcd") == "xa"
        assert checker.matched == "bc"

    def test_the_shorter_wins_if_it_begins_the_longer(self) -> None:
        checker = StopChecker(StopStrings(["stop now", "stop"]))
        assert checker.push("please stop now") == "please "
        assert checker.matched == "stop"

    def test_the_longer_wins_if_it_ends_with_the_shorter(self) -> None:
        checker = StopChecker(StopStrings(["now", "stop now"]))
        assert checker.push("please stop now") == "please "
        assert checker.matched == "stop now"


def test_included_stop_strings_end_the_text() -> None:
    checker = StopChecker(StopStrings([".\n"], include=True))
    assert [checker.push(piece) for piece in ("One", ".", "\nTwo")] == ["One", "", ".\n"]


def test_drops_what_comes_after_the_stop() -> None:
    checker = StopChecker(StopStrings(["."]))
    assert checker.push("One. Two") == "One"
    assert checker.push(" Three") == ""
    assert checker.finish() == ""


def test_lets_everything_through_without_stop_strings() -> None:
    checker = StopChecker(StopStrings([]))
    assert checker.push("anything") == "anything"
    assert not checker.stopped


def test_refuses_an_empty_stop_string() -> None:
    with pytest.raises(ValueError, match="may not be empty"):
        StopStrings(["a", ""])


@pytest.fixture
def stops() -> list[str]:
    """16 times 1024 characters of the kind that makes beginnings overlap most."""
    rng = Random(1)
    return ["".join(rng.choices("ab", [9, 1], k=1024)) for _ in range(16)]


class TestManyLongStopStrings:
    def test_cost_memory_of_their_own_size_and_a_choice_next_to_nothing(self, stops: list[str]) -> None:
        tracemalloc.start()
        strings = StopStrings(stops)
        prepared, _ = tracemalloc.get_traced_memory()
        checkers = [StopChecker(strings) for _ in range(128)]
        total, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert prepared < 16 * sum(map(len, stops))
        assert total - prepared < 128 * 1024
        assert len(checkers) == 128

    def test_cost_time_in_proportion_to_the_text(self, stops: list[str]) -> None:
        started = time.thread_time()
        checker = StopChecker(StopStrings(stops))
        sent = "".join(checker.push("a") for _ in range(2000)) + checker.finish()
        assert sent == "a" * 2000
        assert time.thread_time() - started < 0.5

    def test_are_found_like_any_other(self, stops: list[str]) -> None:
        checker = StopChecker(StopStrings(stops))
        text = "b" * 10 + stops[3][:1000] + stops[7] + "a"
        assert run(checker, list(text)) == text[: text.index(stops[7])]
        assert checker.matched == stops[7]


def test_choices_that_share_stop_strings_do_not_share_progress() -> None:
    strings = StopStrings(["stop"])
    one, other = StopChecker(strings), StopChecker(strings)
    assert (one.push("st"), other.push("op"), one.push("op")) == ("", "op", "")
    assert (one.stopped, other.stopped) == (True, False)
