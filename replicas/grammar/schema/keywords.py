"""The keywords of JSON Schema: which are enforced, which say nothing about validity, and what their values may be.

Any other keyword is refused by name: a constraint that is not enforced must not be taken for one that is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from replicas.grammar.formats import FORMATS, FREE_FORMATS

Schema = Mapping[str, Any]


class SchemaError(ValueError):
    """A schema that cannot be enforced, and the keyword at fault."""

    def __init__(self, keyword: str, reason: str) -> None:
        super().__init__(f"the keyword {keyword!r} {reason}")
        self.keyword = keyword


TYPES: dict[str, frozenset[str]] = {
    name: frozenset({name}) for name in ("null", "boolean", "integer", "string", "array", "object")
} | {"number": frozenset({"integer", "fraction"})}
ALL_TYPES = frozenset().union(*TYPES.values())

ANNOTATIONS = frozenset(
    {
        *("$anchor", "$comment", "$defs", "$id", "$schema", "$vocabulary", "contentEncoding", "contentMediaType"),
        *("contentSchema", "default", "definitions", "deprecated", "description", "discriminator", "example"),
        *("examples", "externalDocs", "id", "nullable", "readOnly", "title", "writeOnly", "xml"),
    }
)
OPENAPI_FORMATS = frozenset({"int32", "int64", "float", "double"})

# A type's keywords: where none is told, a value of that type is meant.
KEYWORDS_OF_TYPE: dict[str, frozenset[str]] = {
    "string": frozenset({"format", "maxLength", "minLength", "pattern"}),
    "number": frozenset({"exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"}),
    "array": frozenset(
        {
            *("additionalItems", "contains", "items", "maxContains", "maxItems", "minContains", "minItems"),
            *("prefixItems", "unevaluatedItems", "uniqueItems"),
        }
    ),
    "object": frozenset(
        {
            *("additionalProperties", "dependencies", "dependentRequired", "dependentSchemas", "maxProperties"),
            *("minProperties", "patternProperties", "properties", "propertyNames", "required"),
            "unevaluatedProperties",
        }
    ),
}
LOGIC = frozenset(
    {
        *("$ref", "allOf", "anyOf", "dependencies", "dependentRequired", "dependentSchemas", "else", "if", "not"),
        *("oneOf", "then"),
    }
)
ENFORCED = LOGIC.union(("type", "enum", "const"), *KEYWORDS_OF_TYPE.values())


def check_keywords(schema: Any) -> None:
    """Raises SchemaError for a subschema of which not every keyword is understood."""
    if not isinstance(schema, dict):
        raise SchemaError("schema", f"is a {_kind(schema)}, but must be an object or a boolean")
    for name, value in schema.items():
        if name in ANNOTATIONS or name.startswith("x-"):
            continue
        if name not in ENFORCED:
            raise SchemaError(name, "is not supported")
        holds, allowed = _SHAPES[name]
        if not holds(value):
            raise SchemaError(name, f"is {_shown(value)}, but must be {allowed}")
    _check_type(schema.get("type", []))
    if (name := schema.get("format")) is not None and name not in FORMATS | FREE_FORMATS | OPENAPI_FORMATS:
        raise SchemaError(
            "format", f"is {_shown(name)}, which is not supported; known are {', '.join(sorted(FORMATS))}"
        )


def _check_type(types: Any) -> None:
    for name in [types] if isinstance(types, str) else types:
        if name not in TYPES:
            raise SchemaError("type", f"is {_shown(name)}, but must be one of {', '.join(TYPES)}")


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_schema(value: Any) -> bool:
    return isinstance(value, (dict, bool))


def _is_schemas(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_schema, value))


def _is_schema_map(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_schema, value.values()))


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_name_map(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_names, value.values()))


Shape = tuple[Callable[[Any], bool], str]
_COUNT: Shape = _is_count, "a whole number, 0 or above"
_NUMBER: Shape = _is_number, "a number"
_SCHEMA: Shape = _is_schema, "a schema"
_SCHEMAS: Shape = _is_schemas, "a list of schemas that is not empty"
_SCHEMA_MAP: Shape = _is_schema_map, "an object of schemas"
_STRING: Shape = lambda value: isinstance(value, str), "a string"

_SHAPES: dict[str, Shape] = {
    **dict.fromkeys(("maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties"), _COUNT),
    **dict.fromkeys(("maxContains", "minContains"), _COUNT),
    **dict.fromkeys(("maximum", "minimum"), _NUMBER),
    **dict.fromkeys(
        ("exclusiveMaximum", "exclusiveMinimum"),
        (lambda value: _is_number(value) or isinstance(value, bool), "a number"),
    ),
    "multipleOf": (lambda value: _is_number(value) and value > 0, "a number above 0"),
    **dict.fromkeys(("additionalProperties", "additionalItems", "contains", "propertyNames", "not"), _SCHEMA),
    **dict.fromkeys(("if", "then", "else", "unevaluatedItems", "unevaluatedProperties"), _SCHEMA),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), _SCHEMAS),
    **dict.fromkeys(("properties", "patternProperties", "dependentSchemas"), _SCHEMA_MAP),
    "items": (lambda value: _is_schema(value) or _is_schemas(value) or value == [], "a schema or a list of schemas"),
    "dependentRequired": (_is_name_map, "an object of lists of names"),
    "dependencies": (
        lambda value: isinstance(value, dict) and all(_is_names(one) or _is_schema(one) for one in value.values()),
        "an object of schemas and lists of names",
    ),
    "required": (_is_names, "a list of names"),
    "enum": (lambda value: isinstance(value, list) and bool(value), "a list that is not empty"),
    "const": (lambda value: True, "any value"),
    **dict.fromkeys(("pattern", "format", "$ref"), _STRING),
    "type": (
        lambda value: isinstance(value, str) or (isinstance(value, list) and bool(value)),
        "a type or a list of types",
    ),
    "uniqueItems": (lambda value: isinstance(value, bool), "true or false"),
}


def _kind(value: Any) -> str:
    return {type(None): "null", str: "string", list: "list"}.get(type(value), "number")


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
