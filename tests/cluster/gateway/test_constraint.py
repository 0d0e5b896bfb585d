"""Which constraints a request may ask for, and by what name others are refused."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from cluster.gateway.constraint import constraint
from cluster.gateway.errors import ApiError

NAMED, OUTPUTS = "response_format.json_schema", "structured_outputs"
SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}}}


@dataclass
class Body:
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: Any = None
    guided_regex: str | None = None
    guided_choice: list[Any] | None = None
    guided_grammar: str | None = None


def json_schema(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **more}}


TAG = {"type": "structural_tag", "format": {"type": "const_string", "value": "x"}}
OLD_TAG = {"structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<f>"]}


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (Body(), None),
        (Body(response_format={"type": "text"}), None),
        (Body(response_format={"type": "json_object"}), "json_object"),
        (Body(response_format=json_schema(SCHEMA)), "json_schema"),
        (Body(response_format=json_schema({}, strict=True, description=None)), "json_schema"),
        (Body(response_format=json_schema(True, strict=False)), "json_schema"),
        (Body(response_format=TAG), "structural_tag"),
        (Body(response_format={"type": "structural_tag", **OLD_TAG}), "structural_tag"),
        (Body(structured_outputs={"json": SCHEMA}), "json_schema"),
        (Body(structured_outputs={"json": json.dumps(SCHEMA), "disable_fallback": False}), "json_schema"),
        (Body(structured_outputs={"json_object": True}), "json_object"),
        (Body(structured_outputs={"regex": "a+"}), "regex"),
        (Body(structured_outputs={"choice": ["a", "b"], "regex": None}), "choice"),
        (Body(structured_outputs={"grammar": 'root ::= "a"'}), "ebnf"),
        (Body(structured_outputs={"structural_tag": json.dumps(TAG)}), "structural_tag"),
        (Body(guided_json=SCHEMA), "json_schema"),
        (Body(guided_regex="a+"), "regex"),
        (Body(guided_choice=["a"]), "choice"),
        (Body(guided_grammar='start: "a"'), "ebnf"),
    ],
)
def test_all_spellings_become_a_grammar(body, kind):
    grammar = constraint(body)
    assert (grammar and grammar.kind) == kind


def test_a_schema_keeps_the_order_of_its_properties():
    grammar = constraint(Body(response_format=json_schema(SCHEMA)))
    assert list(json.loads(grammar.text)["properties"]) == ["b", "a"]


@pytest.mark.parametrize(
    ("body", "param", "named"),
    [
        (Body(response_format={"type": "json_schema"}), NAMED, "required"),
        (Body(response_format={"type": "json_schema", "json_schema": {}}), f"{NAMED}.schema", "missing"),
        (Body(response_format=json_schema("")), f"{NAMED}.schema", '""'),
        (Body(response_format=json_schema([])), f"{NAMED}.schema", "[]"),
        (Body(response_format=json_schema(None)), f"{NAMED}.schema", "null"),
        (Body(response_format={"type": "json_schema", "schema": {}}), "response_format.schema", "schema"),
        (Body(response_format={"type": "nope"}), "response_format.type", "nope"),
        (Body(response_format={}), "response_format.type", "null"),
        (Body(response_format={"type": "json_object", "schema": {}}), "response_format.schema", "schema"),
        (Body(response_format=json_schema({}, strict="yes")), f"{NAMED}.strict", "yes"),
        (Body(response_format=json_schema({"type": "array", "uniqueItems": True})), "response_format", "uniqueItems"),
        (Body(response_format=json_schema({"type": "string", "pattern": "["})), "response_format", "pattern '['"),
        (Body(structured_outputs={}), "structured_outputs", "none"),
        (Body(structured_outputs={"regex": "a", "choice": ["b"]}), "structured_outputs", "regex and choice"),
        (Body(structured_outputs={"regexp": "a"}), "structured_outputs.regexp", "regexp"),
        (Body(structured_outputs={"regex": ""}), "structured_outputs.regex", '""'),
        (Body(structured_outputs={"regex": "(?=x)y"}), "structured_outputs.regex", "look-around"),
        (Body(structured_outputs={"json_object": False}), "structured_outputs.json_object", "false"),
        (Body(structured_outputs={"json": ""}), "structured_outputs.json", "JSON"),
        (Body(structured_outputs={"json": 3}), "structured_outputs.json", "3"),
        (Body(structured_outputs={"regex": "a", "whitespace_pattern": " "}), f"{OUTPUTS}.whitespace_pattern", "white"),
        (Body(structured_outputs={"structural_tag": {"type": "x"}}), f"{OUTPUTS}.structural_tag", "format"),
        (Body(guided_choice=[]), "guided_choice", "[]"),
        (Body(guided_choice=["a", 1]), "guided_choice", "texts"),
        (Body(guided_choice=[""]), "guided_choice", "empty"),
        (Body(guided_grammar=""), "guided_grammar", '""'),
        (Body(guided_grammar="  "), "guided_grammar", "empty"),
        (Body(guided_json={"$ref": "#/nowhere"}), "guided_json", "$ref"),
        (Body(guided_json=float("nan")), "guided_json", "NaN"),
        (Body(guided_regex="a", guided_choice=["b"]), "guided_choice", "guided_regex"),
        (Body(response_format={"type": "json_object"}, guided_regex="a"), "guided_regex", "response_format"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused_by_name(body, param, named):
    with pytest.raises(ApiError) as raised:
        constraint(body)
    error = raised.value.body["error"]
    assert (raised.value.status, error["param"]) == (400, param)
    assert named in error["message"]


@pytest.mark.parametrize(
    "schema",
    [
        {"not": {"not": {"not": {"type": "string"}}}},
        {"anyOf": [{"$ref": "#"}]},
        {"$ref": "#"},
        {"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"oneOf": [{"$ref": "#"}, {"type": "string"}]},
        {"not": {"$ref": "#"}},
        {"allOf": [{"anyOf": [{"minLength": i}, {"maxLength": i}]} for i in range(30)]},
        {"type": "string", "pattern": "(" * 40 + "a" + ")" * 40},
        {"type": "string", "pattern": "((a{1000}){1000}){1000}"},
        {"type": "string", "pattern": "(a|b|ab)*c", "maxLength": 100_000},
        {"type": "object", "properties": {f"p{i}": {} for i in range(3000)}, "minProperties": 1500},
        {"enum": ["a" * 1000] * 1000, "pattern": "^(a+)+b$"},
    ],
)
def test_monsters_are_judged_in_bounded_time(schema):
    """An answer of either kind, soon; the test's time limit is the judge."""
    with suppress(ApiError):
        assert constraint(Body(response_format=json_schema(schema))) is not None
