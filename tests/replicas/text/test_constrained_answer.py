"""Constraints beside reasoning: the answer is held to them, with a thought before it or without one."""

from __future__ import annotations

import json

import pytest

from replicas.sampling.grammar_spec import Grammar
from replicas.text.constrained_answer import allow_thinking, finish_thinking
from replicas.text.reasoning import THINK
from tests.support.constraints import accepts

SCHEMA = json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
TAG = {"type": "structural_tag", "format": {"type": "const_string", "value": "yes"}}
CASES = [
    (Grammar("json_object", ""), '{"b": []}', "b"),
    (Grammar("json_schema", SCHEMA), '{"a": 1}', '{"a": "one"}'),
    (Grammar("regex", "[ab]{2}"), "ab", "abc"),
    (Grammar("choice", '["yes", "no"]'), "no", "maybe"),
    (Grammar("ebnf", 'root ::= "x" | "y"'), "y", "z"),
    (Grammar("structural_tag", json.dumps(TAG)), "yes", "no"),
]


@pytest.mark.parametrize(("grammar", "good", "bad"), CASES, ids=lambda value: getattr(value, "kind", ""))
def test_the_answer_is_held_to_the_constraint(grammar: Grammar, good: str, bad: str) -> None:
    thinking = allow_thinking(grammar, THINK)
    for before in ("", "<think></think>", "<think>\nwell { <b>\n</think>\n\n"):
        assert accepts(thinking, before + good)
        assert not accepts(thinking, before + bad)
    assert not accepts(thinking, "<think>" + good)
    assert not accepts(thinking, "well</think>" + good)


@pytest.mark.parametrize(("grammar", "good", "bad"), CASES, ids=lambda value: getattr(value, "kind", ""))
def test_so_is_the_answer_behind_reasoning_that_is_open(grammar: Grammar, good: str, bad: str) -> None:
    thinking = finish_thinking(grammar, THINK)
    for before in ("</think>", "well { <b>\n</think>\n\n"):
        assert accepts(thinking, before + good)
        assert not accepts(thinking, before + bad)
    assert not accepts(thinking, good)


def test_what_has_no_other_form_stays_as_it_is() -> None:
    old = Grammar("structural_tag", json.dumps({"structures": [], "triggers": []}))
    assert allow_thinking(old, THINK) is old
