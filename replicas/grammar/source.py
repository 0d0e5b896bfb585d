"""What a constraint becomes for xgrammar: one grammar in its EBNF, one in Lark's, or structural tags that hold such."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NoReturn

from replicas.grammar.automaton import TooComplexError
from replicas.grammar.ebnf import print_rules
from replicas.grammar.expression import Expression, Text, alt, prune
from replicas.grammar.pattern import match_expression
from replicas.grammar.schema.translate import schema_to_ebnf
from replicas.sampling.grammar_spec import Grammar, GrammarKind

MAX_TEXT = 256 * 1024
MAX_CHOICES = 1024


class GrammarError(ValueError):
    """A constraint that cannot be served; names the keyword, pattern or field at fault."""


@dataclass(frozen=True, slots=True)
class Source:
    language: Literal["ebnf", "lark", "structural_tag"]
    text: str


def source_of(grammar: Grammar) -> Source:
    """Raises GrammarError."""
    return _source(grammar.kind, grammar.text)


@lru_cache(maxsize=64)
def _source(kind: GrammarKind, text: str) -> Source:
    if len(text) > MAX_TEXT:
        raise GrammarError(f"it has {len(text)} characters, but may have at most {MAX_TEXT}")
    try:
        return _TRANSLATIONS[kind](text)
    except TooComplexError as error:
        raise GrammarError(str(error)) from None
    except GrammarError:
        raise
    except ValueError as error:
        raise GrammarError(str(error)) from None


def _json_object(text: str) -> Source:
    return Source("ebnf", schema_to_ebnf({"type": "object"}))


def _json_schema(text: str) -> Source:
    return Source("ebnf", schema_to_ebnf(read_json(text)))


def _regex(text: str) -> Source:
    return _plain(match_expression(text))


def _choice(text: str) -> Source:
    choices = read_json(text)
    if not isinstance(choices, list) or not choices or not all(isinstance(one, str) for one in choices):
        raise GrammarError("it must be a list of texts that is not empty")
    if len(choices) > MAX_CHOICES:
        raise GrammarError(f"it has {len(choices)} entries, but may have at most {MAX_CHOICES}")
    for choice in choices:
        if not choice:
            raise GrammarError("it has an empty text, which no answer can be")
        try:
            choice.encode()
        except UnicodeEncodeError:
            raise GrammarError("it has half of a surrogate pair, which is not a character") from None
    return _plain(alt(*map(Text, choices)))


def _ebnf(text: str) -> Source:
    if not text.strip():
        raise GrammarError("it is empty")
    return Source("ebnf" if "::=" in text else "lark", text)


def _plain(expression: Expression) -> Source:
    rules = prune({"r0": expression}, "r0")
    if not rules:
        raise GrammarError("it cannot be satisfied by any text")
    return Source("ebnf", print_rules(rules, "r0"))


def _structural_tag(text: str) -> Source:
    tag = read_json(text)
    if not isinstance(tag, dict):
        raise GrammarError("it must be an object")
    if "structures" in tag:
        tag = {"type": "structural_tag", "format": _old_form(tag)}
    if tag.get("type") != "structural_tag" or not isinstance(tag.get("format"), dict):
        raise GrammarError("it must have the type 'structural_tag' and a format")
    return Source("structural_tag", json.dumps({"type": "structural_tag", "format": _format(tag["format"])}))


def _old_form(tag: Mapping[str, Any]) -> dict[str, Any]:
    """Lists of structures and triggers, as they were written before there were formats."""
    structures, triggers = tag["structures"], tag.get("triggers")
    if not isinstance(structures, list) or not structures or not isinstance(triggers, list) or not triggers:
        raise GrammarError("structures and triggers must be lists that are not empty")
    tags = []
    for one in structures:
        if not isinstance(one, dict) or not {"begin", "end"} <= one.keys() <= {"begin", "end", "schema"}:
            raise GrammarError("each of its structures must have begin, schema and end")
        content = {"type": "json_schema", "json_schema": one.get("schema", {})}
        tags.append({"type": "tag", "begin": one["begin"], "content": content, "end": one["end"]})
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags}


# The formats that hold others, with the fields that do.
_NESTED: dict[str, tuple[str, ...]] = {
    "tag": ("content",),
    "optional": ("content",),
    "plus": ("content",),
    "star": ("content",),
    "repeat": ("content",),
    "sequence": ("elements",),
    "or": ("elements",),
    "triggered_tags": ("tags",),
    "tags_with_separator": ("tags",),
}
_LEAVES = frozenset({"const_string", "any_text"})


def _format(one: Any) -> dict[str, Any]:
    """A format whose schemas and patterns have become grammars."""
    if not isinstance(one, dict):
        raise GrammarError("a format must be an object")
    kind = one.get("type")
    match kind:
        case "json_schema":
            _only(one, {"type", "json_schema", "style"})
            if one.get("style", "json") != "json":
                raise GrammarError(f"the style {one['style']!r} of json_schema is not supported")
            return {"type": "grammar", "grammar": schema_to_ebnf(one.get("json_schema"))}
        case "regex":
            _only(one, {"type", "pattern"})
            return {"type": "grammar", "grammar": _regex(str(one.get("pattern", ""))).text}
        case "grammar":
            _only(one, {"type", "grammar"})
            source = _ebnf(str(one.get("grammar", "")))
            return {"type": "grammar", "grammar": source.text, "syntax": source.language}
    if kind in _LEAVES:
        return dict(one)
    if kind not in _NESTED:
        raise GrammarError(f"the format {kind!r} is not supported")
    found = dict(one)
    for field in _NESTED[kind]:
        inner = one.get(field)
        found[field] = [_format(each) for each in inner] if isinstance(inner, list) else _format(inner)
    return found


def _only(one: Mapping[str, Any], fields: set[str]) -> None:
    for name in one:
        if name not in fields:
            raise GrammarError(f"{name!r} is not supported in a {one['type']} format")


def read_json(text: str) -> Any:
    """Raises GrammarError."""

    def refuse(constant: str) -> NoReturn:
        raise GrammarError(f"{constant} is not JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except (json.JSONDecodeError, RecursionError) as error:
        raise GrammarError(f"it is no valid JSON: {error}") from None


_TRANSLATIONS: dict[GrammarKind, Callable[[str], Source]] = {
    "json_object": _json_object,
    "json_schema": _json_schema,
    "regex": _regex,
    "choice": _choice,
    "ebnf": _ebnf,
    "structural_tag": _structural_tag,
}
