"""Stop strings count behind the reasoning only, however the text is split."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicas.text.stop_scope import StopScope


def split(text, is_open=False, cuts=()):
    """What a scope makes of a text that comes in pieces, cut at these places."""
    scope = StopScope("<think>", "</think>", is_open)
    edges = [0, *sorted(cut for cut in cuts if cut <= len(text)), len(text)]
    parts = [scope.push(text[start:end]) for start, end in pairwise(edges)]
    parts.append(scope.finish())
    return "".join(first for first, _ in parts), "".join(second for _, second in parts)


@pytest.mark.parametrize(
    ("text", "is_open", "reasoning"),
    [
        ("<think>a b</think>c", False, "<think>a b</think>"),
        (" \n<think>a</think></think>c", False, " \n<think>a</think>"),
        ("<think></think>c", False, "<think></think>"),
        ("<think>a", False, "<think>a"),
        ("<think>a</thi", False, "<think>a</thi"),
        ("<thin", False, ""),
        ("", False, ""),
        ("no, <think>a</think>", False, ""),
        ("a</think>b", False, ""),
        ("a</think>b", True, "a</think>"),
        ("a", True, "a"),
        ("<think>a</think>b", True, "<think>a</think>"),
    ],
)
def test_the_reasoning_is_what_stands_before_the_first_end(text, is_open, reasoning):
    assert split(text, is_open) == (reasoning, text.removeprefix(reasoning))


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<", "/", "th", "ink>", " ", "x", "é"])).map("".join),
    st.booleans(),
    st.lists(st.integers(0, 40)),
)
def test_pieces_make_no_difference(text, is_open, cuts):
    whole = split(text, is_open)
    assert split(text, is_open, cuts) == whole
    assert "".join(whole) == text


def test_text_is_let_through_as_soon_as_it_is_certain():
    scope = StopScope("<think>", "</think>", False)
    assert scope.push("<thi") == ("", "")
    assert scope.push("nk>abc</") == ("<think>abc", "")
    assert scope.push("think>d") == ("</think>", "d")
    assert scope.push("e") == ("", "e")
