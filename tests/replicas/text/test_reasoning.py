"""Reasoning apart from the answer: only the first closing mark splits, wherever the text is split."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.text.parts import ContentParser
from replicas.text.reasoning import REASONING_FORMATS, THINK, ReasoningParser, find_think_marks
from replicas.text.stop_scope import StopScope
from replicas.text.tools.formats import TOOL_FORMATS
from tests.support.answers import calls_of, content_of, parse, pieces, reasoning_of

FRAGMENTS = st.sampled_from(["<think>", "</think>", "<think", "</", "think>", "\n", " ", "a", "<", "🫠"])
TEXTS = st.lists(FRAGMENTS | st.text(max_size=2), max_size=12).map("".join)


def split(text: str, is_open: bool = False) -> tuple[str, str]:
    parts = parse(ReasoningParser(THINK, is_open, ContentParser()), list(text))
    return reasoning_of(parts), content_of(parts)


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("<think>a</think>x</think>y", "a", "x</think>y"),
        ("<think></think>z", "", "z"),
        ("<think>\n\n</think>\n\nz", "", "z"),
        ("\n<think>\nplan X\nstep\n</think>\n\nanswer\n", "plan X\nstep", "answer\n"),
        ("<think>a <think> b</think>c", "a <think> b", "c"),
        ("<think>cut in the midst", "cut in the midst", ""),
        ("<think>cut in the mark</thi", "cut in the mark</thi", ""),
        ("<think>", "", ""),
        ("<thin", "", "<thin"),
        ("no marks", "", "no marks"),
        ("later <think>a</think>", "", "later <think>a</think>"),
        ("a</think>b", "", "a</think>b"),
        ("", "", ""),
        ("\n", "", "\n"),
    ],
)
def test_a_text_that_is_not_opened(text: str, reasoning: str, content: str) -> None:
    assert split(text) == (reasoning, content)


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("a</think>x</think>y", "a", "x</think>y"),
        ("</think>z", "", "z"),
        ("a\n</think>\n\nz", "a", "z"),
        ("no end", "no end", ""),
        ("a\n", "a", ""),
        ("", "", ""),
    ],
)
def test_a_text_that_the_template_has_opened(text: str, reasoning: str, content: str) -> None:
    assert split(text, is_open=True) == (reasoning, content)


@settings(max_examples=100, deadline=None)
@given(text=TEXTS, is_open=st.booleans(), cuts=st.lists(st.integers(0, 40)))
def test_any_text_is_read_as_at_once_however_it_is_split(text: str, is_open: bool, cuts: list[int]) -> None:
    parts = parse(ReasoningParser(THINK, is_open, ContentParser()), pieces(text, cuts))
    assert (reasoning_of(parts), content_of(parts)) == read_at_once(text, is_open)


def read_at_once(text: str, is_open: bool) -> tuple[str, str]:
    if not is_open:
        opening = re.match(r"\s*<think>", text)
        if opening is None:
            return "", text
        text = text[opening.end() :]
    thought, _, rest = text.partition("</think>")
    return thought.strip("\n"), rest.lstrip("\n")


@settings(max_examples=100, deadline=None)
@given(text=TEXTS, is_open=st.booleans())
def test_stop_strings_count_where_the_answer_is(text: str, is_open: bool) -> None:
    scope = StopScope(THINK.opening, THINK.closing, is_open)
    pairs = [scope.push(character) for character in text] + [scope.finish()]
    answer = "".join(after for _, after in pairs)
    content = content_of(parse(ReasoningParser(THINK, is_open, ContentParser()), [text]))
    assert content == (answer if answer == text else answer.lstrip("\n"))


def test_reasoning_streams_as_it_comes() -> None:
    parser = ReasoningParser(THINK, True, ContentParser())
    assert reasoning_of(parser.push("first")) == "first"
    assert reasoning_of(parser.push(" then")) == " then"
    assert content_of(parser.push("</think>so")) == "so"


def test_calls_are_read_in_the_answer_alone() -> None:
    form = TOOL_FORMATS["hermes"]
    call = form.write([("f", "{}")])
    parser = ReasoningParser(THINK, False, form.parser({"f"}))
    parts = parse(parser, list(f"<think>{call}</think>\n{call}"))
    assert reasoning_of(parts) == call
    assert calls_of(parts) == [("f", {})]
    assert parser.has_whole_calls


@pytest.mark.parametrize(
    ("template", "marks"),
    [
        ("{{ x }}", None),
        ("{% if '</think>' in x %}{% endif %}", REASONING_FORMATS["think"]),
        ("[THINK]{{ x }}[/THINK]", REASONING_FORMATS["mistral"]),
        ("<seed:think>{{ x }}</seed:think>", REASONING_FORMATS["seed"]),
    ],
)
def test_marks_are_found_in_templates(template: str, marks: object) -> None:
    assert find_think_marks(template) is marks
