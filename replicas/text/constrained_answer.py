"""Constraints that leave a model's reasoning free and hold for its answer alone."""

from __future__ import annotations

import json
from typing import Any

from replicas.sampling.grammar_spec import Grammar
from replicas.text.reasoning import ThinkMarks

Format = dict[str, Any]


def allow_thinking(grammar: Grammar, marks: ThinkMarks) -> Grammar:
    """The same constraint on an answer before which there may be reasoning between its marks."""
    return _behind({"type": "optional", "content": _thought(marks.opening, marks)}, grammar)


def finish_thinking(grammar: Grammar, marks: ThinkMarks) -> Grammar:
    """The same constraint on an answer that begins inside reasoning, for marks that are no single tokens; where they
    are, `Grammar.after` costs less."""
    return _behind(_thought("", marks), grammar)


def _thought(opening: str, marks: ThinkMarks) -> Format:
    text = {"type": "tag", "begin": opening, "content": {"type": "any_text"}, "end": marks.closing}
    line_breaks = {"type": "regex", "pattern": "\n{0,2}"}
    return {"type": "sequence", "elements": [text, line_breaks]}


def _behind(thought: Format, grammar: Grammar) -> Grammar:
    answer = _as_format(grammar)
    if answer is None:
        return grammar
    tag = {"type": "structural_tag", "format": {"type": "sequence", "elements": [thought, answer]}}
    return Grammar("structural_tag", json.dumps(tag, ensure_ascii=False))


def _as_format(grammar: Grammar) -> Format | None:
    """The constraint as a part of structural tags; None for what has no such form."""
    match grammar.kind:
        case "json_object":
            return {"type": "json_schema", "json_schema": {"type": "object"}}
        case "json_schema":
            return {"type": "json_schema", "json_schema": json.loads(grammar.text)}
        case "regex":
            return {"type": "regex", "pattern": grammar.text}
        case "choice":
            choices = json.loads(grammar.text)
            return {"type": "or", "elements": [{"type": "const_string", "value": choice} for choice in choices]}
        case "ebnf":
            return {"type": "grammar", "grammar": grammar.text}
        case "structural_tag":
            inner = json.loads(grammar.text).get("format")
            return inner if isinstance(inner, dict) else None
