"""The constraint that a request puts on its answer: `response_format` as OpenAI has it, `structured_outputs` and the
older `guided_*` fields as vLLM has them. What cannot be enforced is refused before anything is dispatched; never is an
answer to a constrained request left unconstrained."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from cluster.gateway.errors import bad_request
from replicas.grammar.source import GrammarError, source_of
from replicas.sampling.grammar_spec import Grammar


class Constrained(Protocol):
    """The fields of a request that may hold a constraint, None where it was not given."""

    @property
    def response_format(self) -> dict[str, Any] | None: ...
    @property
    def structured_outputs(self) -> dict[str, Any] | None: ...
    @property
    def guided_json(self) -> Any: ...
    @property
    def guided_regex(self) -> str | None: ...
    @property
    def guided_choice(self) -> list[Any] | None: ...
    @property
    def guided_grammar(self) -> str | None: ...


def constraint(body: Constrained) -> Grammar | None:
    """Raises ApiError 400 that names the field, and the keyword or pattern in it, for what cannot be served."""
    found: dict[str, Grammar] = {}
    if body.response_format is not None and (grammar := _response_format(body.response_format)) is not None:
        found["response_format"] = grammar
    if body.structured_outputs is not None:
        name, grammar = _structured_outputs(body.structured_outputs)
        found[f"structured_outputs.{name}"] = grammar
    for field, read in _GUIDED.items():
        if (value := getattr(body, field)) is not None:
            found[field] = read(value, field)
    if len(found) > 1:
        first, second, *_ = found
        raise bad_request(f"{first} and {second} are both given, but an answer can have one constraint only.", second)
    for field, grammar in found.items():
        check(grammar, field)
        return grammar
    return None


def check(grammar: Grammar, field: str) -> None:
    """Raises ApiError 400 by the name of the field for a constraint that cannot be enforced."""
    try:
        source_of(grammar)
    except GrammarError as error:
        raise bad_request(f"{field} cannot be served: {error}.", field) from None


def _response_format(given: Mapping[str, Any]) -> Grammar | None:
    field = "response_format"
    kind = given.get("type")
    match kind:
        case "text":
            _only(given, {"type"}, field)
            return None
        case "json_object":
            _only(given, {"type"}, field)
            return Grammar("json_object", "")
        case "json_schema":
            _only(given, {"type", "json_schema"}, field)
            return _named_schema(given.get("json_schema"))
        case "structural_tag":
            return Grammar("structural_tag", json.dumps(given))
    raise bad_request(
        f"response_format.type is {_shown(kind)}, but must be text, json_object, json_schema or structural_tag.",
        "response_format.type",
    )


def _named_schema(given: Any) -> Grammar:
    field = "response_format.json_schema"
    if not isinstance(given, dict):
        raise bad_request(f"{field} is required, and must be an object with a schema.", field)
    _only(given, {"name", "description", "schema", "strict"}, field)
    for name, kinds in (("name", str), ("description", (str, type(None))), ("strict", (bool, type(None)))):
        if name in given and not isinstance(given[name], kinds):
            raise bad_request(
                f"{field}.{name} is {_shown(given[name])}, which is of the wrong type.", f"{field}.{name}"
            )
    if not isinstance(given.get("schema"), (dict, bool)):
        found = _shown(given["schema"]) if "schema" in given else "missing"
        raise bad_request(f"{field}.schema is {found}, but must be a JSON schema.", f"{field}.schema")
    return Grammar("json_schema", json.dumps(given["schema"]))


def _structured_outputs(given: Mapping[str, Any]) -> tuple[str, Grammar]:
    """The name of the one constraint that is given, and the constraint."""
    field = "structured_outputs"
    _only(given, {*_STRUCTURED, *_SETTINGS}, field)
    for name in _SETTINGS:
        if given.get(name) not in (None, False):
            raise bad_request(f"{field}.{name} is not supported by this server.", f"{field}.{name}")
    names = [name for name in _STRUCTURED if given.get(name) is not None]
    if len(names) != 1:
        few = "none is" if not names else " and ".join(names) + " are"
        raise bad_request(f"{field} must have one of {', '.join(_STRUCTURED)}, but {few} given.", field)
    return names[0], _STRUCTURED[names[0]](given[names[0]], f"{field}.{names[0]}")


def _json(value: Any, field: str) -> Grammar:
    """A schema, or the text of one."""
    if isinstance(value, str):
        return Grammar("json_schema", value)
    if not isinstance(value, (dict, bool)):
        raise bad_request(f"{field} is {_shown(value)}, but must be a JSON schema.", field)
    return Grammar("json_schema", json.dumps(value))


def _regex(value: Any, field: str) -> Grammar:
    return Grammar("regex", _text(value, field))


def _choice(value: Any, field: str) -> Grammar:
    if not isinstance(value, list) or not value:
        raise bad_request(f"{field} is {_shown(value)}, but must be a list of texts that is not empty.", field)
    return Grammar("choice", json.dumps(value))


def _grammar(value: Any, field: str) -> Grammar:
    return Grammar("ebnf", _text(value, field))


def _json_object(value: Any, field: str) -> Grammar:
    if value is not True:
        raise bad_request(f"{field} is {_shown(value)}, but must be true, or be left out.", field)
    return Grammar("json_object", "")


def _structural_tag(value: Any, field: str) -> Grammar:
    if not isinstance(value, (str, dict)):
        raise bad_request(f"{field} is {_shown(value)}, but must be an object or its text.", field)
    return Grammar("structural_tag", value if isinstance(value, str) else json.dumps(value))


Read = Callable[[Any, str], Grammar]
_STRUCTURED: dict[str, Read] = {
    "json": _json,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "json_object": _json_object,
    "structural_tag": _structural_tag,
}
_SETTINGS = ("disable_fallback", "disable_any_whitespace", "disable_additional_properties", "whitespace_pattern")
_GUIDED: dict[str, Read] = {
    "guided_json": _json,
    "guided_regex": _regex,
    "guided_choice": _choice,
    "guided_grammar": _grammar,
}


def _text(value: Any, field: str) -> str:
    if not isinstance(value, str) or not value:
        raise bad_request(f"{field} is {_shown(value)}, but must be a text that is not empty.", field)
    return value


def _only(given: Mapping[str, Any], known: set[str], field: str) -> None:
    for name in given:
        if name not in known:
            raise bad_request(f"{field}.{name} is not a known field.", f"{field}.{name}", "unknown_parameter")


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
