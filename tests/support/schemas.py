"""Two hundred JSON schemas of growing nastiness: each keyword alone, in pairs, nested, by reference and in conflict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Schema = Any

STRING = {"type": "string", "maxLength": 12}
INTEGER = {"type": "integer"}
SMALL = {"type": "integer", "minimum": 0, "maximum": 9}
NASTY_TEXTS = ['say "hi"', "back\\slash", "开心", "a\nb", "", "🙂", "é", "\t", "</think>", "{}", "\u2028", "\u0007"]


def object_of(properties: dict[str, Schema], **keywords: Any) -> Schema:
    return {"type": "object", "properties": properties, **keywords}


def closed(properties: dict[str, Schema], **keywords: Any) -> Schema:
    return object_of(properties, required=list(properties), additionalProperties=False, **keywords)


def schemas() -> list[tuple[str, Schema]]:
    """Names and schemas. Some cannot be enforced by a grammar, and some by nothing."""
    families = {
        "type": _types(),
        "integer": _integers(),
        "number": _numbers(),
        "string": _strings(),
        "pattern": _patterns(),
        "format": _formats(),
        "enum": _enums(),
        "array": _arrays(),
        "object": _objects(),
        "logic": _logic(),
        "reference": _references(),
        "real": _real(),
        "hopeless": _hopeless(),
    }
    return [(f"{name}-{index}", schema) for name, family in families.items() for index, schema in enumerate(family)]


def _types() -> Iterator[Schema]:
    yield from (True, {}, {"type": "object"}, {"type": "array"}, {"type": "null"}, {"type": "boolean"})
    yield from ({"type": "string"}, {"type": "integer"}, {"type": "number"})
    yield {"type": ["string", "null"]}
    yield {"type": ["integer", "string", "boolean", "null"], "maxLength": 3, "minimum": 5}
    yield {"type": ["object", "array"], "maxItems": 2, "maxProperties": 2}
    yield {"title": "A title", "description": "Only words", "default": 3, "examples": [1], "type": "integer"}
    yield {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://example.org/x", "type": "boolean"}


def _integers() -> Iterator[Schema]:
    for low, high in (
        (0, 9),
        (-5, 5),
        (7, 7),
        (99, 1001),
        (-1000, -1),
        (123456, 654321),
        (0, 10**15),
        (-(2**31), 2**31),
    ):
        yield {"type": "integer", "minimum": low, "maximum": high}
    yield {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 6}
    yield {"type": "integer", "minimum": 10}
    yield {"type": "integer", "maximum": -10}
    yield {"type": "integer", "minimum": 2.5, "maximum": 3.5}
    yield {"type": "integer", "multipleOf": 7}
    yield {"type": "integer", "multipleOf": 5, "minimum": -20, "maximum": 20}
    yield {"type": "integer", "multipleOf": 13, "minimum": 1000}
    yield {"type": "integer", "multipleOf": 250}
    yield {"type": "integer", "format": "int32"}
    yield {"minimum": 3, "maximum": 4}


def _numbers() -> Iterator[Schema]:
    for low, high in ((0, 1), (0.5, 1.25), (-1.5, -0.25), (-0.001, 0.001), (99.9, 1000.1), (0, 1e6), (3, 3)):
        yield {"type": "number", "minimum": low, "maximum": high}
    yield {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}
    yield {"type": "number", "exclusiveMinimum": -1, "maximum": 0}
    yield {"type": "number", "minimum": 1e-7, "maximum": 1e-6}
    yield {"type": "number", "exclusiveMinimum": 0}
    yield {"type": "number", "maximum": 100}
    yield {"type": "number", "multipleOf": 2}
    yield {"type": "number", "multipleOf": 3.0, "minimum": 0}


def _strings() -> Iterator[Schema]:
    for least, most in ((0, 0), (1, 1), (0, 5), (3, 8), (10, 20), (0, 500)):
        yield {"type": "string", "minLength": least, "maxLength": most}
    yield {"type": "string", "minLength": 4}
    yield {"minLength": 1, "maxLength": 2}
    yield {"type": "string", "contentEncoding": "base64", "maxLength": 8}


def _patterns() -> Iterator[Schema]:
    yield from (
        {"type": "string", "pattern": pattern}
        for pattern in (
            *("^[a-z]{3}$", "^\\d{3}-\\d{4}$", "^(red|green|blue)$", "^#[0-9a-fA-F]{6}$", "^a?b*c+$", "^ok\\!$"),
            *(
                '^[^"\\\\]{1,4}$',
                "^\\w{1,8}$",
                "^\\S+$",
                "^.$",
                "^\\u00e9$",
                "^[\\u4e00-\\u9fff]{2}$",
                "^(a|b|)c{0,2}$",
            ),
            *(
                "^\\s?x\\s?$",
                "^\\x41\\t$",
                "^(?:(?:ab){2}|c)d$",
                "^(\\d{4})$",
                "^a|b$",
                "^\\.\\*\\/$",
                "^[-+.]?$",
            ),
            *("^\\D\\W$", '^"quoted"$', "^[\\]\\[]$", "^$", "^🙂{2}$", "^(x{1,3}y){2}$", "^[a-c]*?d$"),
        )
    )
    yield {"type": "string", "pattern": "b", "maxLength": 5}
    yield {"type": "string", "pattern": "^a", "minLength": 2, "maxLength": 4}
    yield {"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 30}
    yield {"allOf": [{"type": "string", "pattern": "^[a-c]+$"}, {"pattern": "b"}, {"maxLength": 5}]}
    yield {"type": "string", "not": {"pattern": "[0-9]"}, "maxLength": 4}


def _formats() -> Iterator[Schema]:
    for name in ("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uri-reference"):
        yield {"type": "string", "format": name}
    yield {"type": "string", "format": "uuid"}
    yield {"type": "string", "format": "json-pointer"}
    yield {"type": "string", "format": "date", "pattern": "^20"}
    yield closed({"born": {"type": "string", "format": "date"}, "mail": {"type": "string", "format": "email"}})


def _enums() -> Iterator[Schema]:
    yield {"enum": NASTY_TEXTS}
    yield {"enum": [1, "1", None, True]}
    yield {"enum": [1.5, -3, 1e10, {"a": [1, "é"]}, [], [[]], {}]}
    yield {"type": "string", "enum": ["a", 1, None]}
    yield {"type": "integer", "enum": [1, 5, 9], "minimum": 4}
    yield {"enum": ["aa", "b", "cc"], "pattern": "^.{2}$"}
    yield from ({"const": value} for value in (None, 0, 'x"y', [1, {"b": "🙂"}], {"k": None}))
    yield {"$defs": {"e": {"enum": NASTY_TEXTS}}, **closed({"p": {"$ref": "#/$defs/e"}})}
    yield {"enum": ["a", "b", "c"], "not": {"enum": ["b"]}}
    yield {"type": "string", "maxLength": 3, "not": {"const": "abc"}}
    yield {"type": "integer", "minimum": 0, "maximum": 3, "not": {"enum": [1, 2]}}


def _arrays() -> Iterator[Schema]:
    for least, most in ((0, 0), (1, 1), (2, 3), (0, 4), (5, 5)):
        yield {"type": "array", "items": SMALL, "minItems": least, "maxItems": most}
    yield {"type": "array", "items": STRING, "minItems": 1, "maxItems": 3}
    yield {"type": "array", "items": {"type": "array", "items": SMALL, "maxItems": 2}, "maxItems": 2}
    yield {"type": "array", "prefixItems": [SMALL, STRING]}
    yield {"type": "array", "prefixItems": [SMALL, STRING], "minItems": 2, "items": False}
    yield {"type": "array", "prefixItems": [SMALL], "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4}
    yield {"type": "array", "prefixItems": [SMALL, {"type": "null"}, STRING], "minItems": 1, "maxItems": 2}
    yield {"$schema": "http://json-schema.org/draft-07/schema#", "type": "array", "items": [SMALL], "minItems": 1}
    yield {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True, "minItems": 2}
    yield {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True, "minItems": 1}
    yield {"type": "array", "items": SMALL, "uniqueItems": True, "minItems": 3, "maxItems": 3}
    yield {"type": "array", "items": STRING, "uniqueItems": True, "minItems": 1, "maxItems": 1}
    yield {"type": "array", "items": SMALL, "contains": {"const": 3}, "maxItems": 4}
    yield {"type": "array", "items": SMALL, "contains": {"minimum": 5}, "minContains": 2, "maxItems": 4}
    yield {"type": "array", "contains": {"type": "string", "maxLength": 2}, "maxItems": 2}
    yield {"type": "array", "items": SMALL, "contains": {"const": 3}, "minContains": 0, "maxItems": 2}
    yield {"items": SMALL, "maxItems": 2}
    yield {"type": "array", "items": True, "maxItems": 1}


def _objects() -> Iterator[Schema]:
    yield closed({"a": STRING, "b": SMALL})
    yield object_of({"a": STRING, "b": SMALL}, required=["a"])
    yield object_of({"a": SMALL, "b": SMALL, "c": SMALL})
    yield object_of({"a": SMALL}, additionalProperties={"type": "boolean"})
    yield object_of({"a": SMALL}, additionalProperties=True, maxProperties=2)
    yield {"type": "object", "additionalProperties": SMALL, "maxProperties": 3}
    yield {"type": "object", "additionalProperties": False}
    yield {"type": "object", "required": ["a", "b"], "maxProperties": 2}
    yield {"type": "object", "minProperties": 1, "maxProperties": 1}
    yield object_of({"a": SMALL, "b": SMALL, "c": SMALL}, minProperties=2, additionalProperties=False)
    yield object_of({"a": SMALL, "b": SMALL, "c": SMALL}, maxProperties=1)
    yield object_of({"a": SMALL, "b": SMALL, "c": SMALL}, minProperties=1, maxProperties=2, required=["b"])
    yield {"type": "object", "patternProperties": {"^x": SMALL}, "additionalProperties": False, "maxProperties": 2}
    yield {"type": "object", "patternProperties": {"^x": SMALL}, "additionalProperties": STRING, "maxProperties": 2}
    yield object_of({"xa": SMALL}, patternProperties={"^x": {"minimum": 5}}, required=["xa"])
    yield {"type": "object", "patternProperties": {"^x": SMALL, "y$": STRING}, "maxProperties": 2}
    yield {"type": "object", "propertyNames": {"pattern": "^[a-z]{1,3}$"}, "maxProperties": 2, "minProperties": 1}
    yield {"type": "object", "propertyNames": {"enum": ["left", "right"]}, "additionalProperties": SMALL}
    yield {"type": "object", "propertyNames": {"maxLength": 2}, "maxProperties": 1}
    yield object_of({"a": SMALL, "b": SMALL}, dependentRequired={"a": ["b"]})
    yield object_of(
        {"a": SMALL, "b": SMALL}, dependentSchemas={"a": {"properties": {"b": {"const": 1}}, "required": ["b"]}}
    )
    yield object_of({"a": SMALL, "b": SMALL, "c": SMALL}, dependentRequired={"a": ["b"], "b": ["c"]})
    yield object_of({"a": False, "b": SMALL})
    yield object_of({"b": SMALL}, unevaluatedProperties=False, required=["b"])
    yield closed({'q"uote': SMALL, "back\\slash": SMALL, "é🙂": SMALL, "": SMALL, "line\nbreak": SMALL})
    yield closed({f"p{index}": {"type": "boolean"} for index in range(40)})
    yield object_of({f"p{index}": {"type": "boolean"} for index in range(40)}, minProperties=3)
    yield {"properties": {"a": SMALL}, "required": ["a"]}
    yield closed({"a": closed({"b": closed({"c": closed({"d": {"type": "array", "items": SMALL, "maxItems": 2}})})})})


def _logic() -> Iterator[Schema]:
    yield {"anyOf": [STRING, SMALL]}
    yield {"anyOf": [closed({"a": SMALL}), closed({"a": SMALL, "b": SMALL})]}
    yield object_of({"a": SMALL, "b": SMALL}, anyOf=[{"required": ["a"]}, {"required": ["b"]}])
    yield {"oneOf": [STRING, {"type": "boolean"}]}
    yield {"oneOf": [{"type": "integer", "minimum": 1}, {"type": "integer", "maximum": 5}]}
    yield {"oneOf": [closed({"kind": {"const": "a"}, "x": SMALL}), closed({"kind": {"const": "b"}, "y": STRING})]}
    yield object_of({"a": SMALL, "b": SMALL}, oneOf=[{"required": ["a"]}, {"required": ["b"]}])
    yield {"oneOf": [{"type": "integer", "multipleOf": 5}, {"type": "integer", "minimum": 0, "maximum": 3}]}
    yield {"oneOf": [{"enum": ["a", "b"]}, {"enum": ["c", None]}]}
    yield {"allOf": [closed({"a": SMALL})]}
    yield {"allOf": [object_of({"a": SMALL}, required=["a"]), object_of({"b": STRING}, required=["b"])]}
    yield {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 8}, {"multipleOf": 2}]}
    yield {
        "allOf": [{"anyOf": [{"type": "string"}, {"type": "integer"}]}, {"maxLength": 3, "maximum": 9, "minimum": 0}]
    }
    yield {"type": "string", "allOf": [{"minLength": 2}, {"maxLength": 4}]}
    yield {"not": {"type": ["object", "array", "string"]}}
    yield {"type": "integer", "not": {"minimum": 5}, "minimum": 0}
    yield object_of({"a": SMALL, "b": SMALL}, **{"not": {"required": ["a"]}})
    yield {"type": "array", "items": SMALL, "maxItems": 3, "not": {"minItems": 2}}
    yield {"not": {"anyOf": [{"type": "string"}, {"type": "object"}, {"type": "array"}]}}
    yield object_of({"a": SMALL, "b": SMALL}, **{"if": {"required": ["a"]}, "then": {"required": ["b"]}})
    country = object_of({"country": {"enum": ["US", "CA"]}, "code": {"type": "string"}}, required=["country", "code"])
    us = {"properties": {"country": {"const": "US"}}, "required": ["country"]}
    five, canadian = (
        {"properties": {"code": {"pattern": "^\\d{5}$"}}},
        {"properties": {"code": {"pattern": "^[A-Z]\\d[A-Z]$"}}},
    )
    yield country | {"if": us, "then": five, "else": canadian}
    yield {"if": {"type": "integer"}, "then": {"minimum": 5, "maximum": 9}, "else": {"type": "null"}}
    yield {"anyOf": [{"type": "string", "maxLength": 2}, {"allOf": [{"type": "integer"}, {"not": {"minimum": 0}}]}]}


def _references() -> Iterator[Schema]:
    node = object_of(
        {"v": SMALL, "kids": {"type": "array", "items": {"$ref": "#/$defs/n"}, "maxItems": 2}}, required=["v"]
    )
    yield {"$defs": {"n": node}, "$ref": "#/$defs/n"}
    ping, pong = (
        object_of({"pong": {"$ref": "#/$defs/pong"}}),
        object_of({"ping": {"$ref": "#/$defs/ping"}, "n": SMALL}),
    )
    yield {"$defs": {"ping": ping, "pong": pong}, "$ref": "#/$defs/ping"}
    yield object_of({"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, required=["next"])
    yield {"$defs": {"s": {"type": "string"}}, "$ref": "#/$defs/s", "maxLength": 3}
    yield {"$defs": {"s": SMALL}, "type": "array", "items": {"$ref": "#/$defs/s"}, "minItems": 1, "maxItems": 2}
    yield {"$defs": {"s": SMALL}, "anyOf": [{"$ref": "#/$defs/s"}, {"type": "null"}]}
    yield {"definitions": {"a~b/c d": SMALL}, "$ref": "#/definitions/a~0b~1c%20d"}
    yield {"$defs": {"x": {"$anchor": "here", **SMALL}}, "$ref": "#here"}
    yield object_of({"a": STRING, "b": {"$ref": "#/properties/a"}}, required=["b"])
    chain = {f"d{index}": {"$ref": f"#/$defs/d{index + 1}"} for index in range(15)}
    yield {"$defs": {**chain, "d15": SMALL}, "$ref": "#/$defs/d0"}
    deep = {f"d{index}": closed({"x": {"$ref": f"#/$defs/d{index + 1}"}}) for index in range(30)}
    yield {"$defs": {**deep, "d30": SMALL}, "$ref": "#/$defs/d0"}


def _real() -> Iterator[Schema]:
    """Of the kind that people send."""
    item = closed(
        {
            "name": STRING,
            "price": {"type": "number", "minimum": 0, "maximum": 1000},
            "tags": {"type": "array", "items": {"enum": ["new", "sale"]}, "uniqueItems": True},
        }
    )
    yield closed({"id": {"type": "string", "format": "uuid"}, "items": {"type": "array", "items": item, "maxItems": 2}})
    yield closed({"city": STRING, "unit": {"enum": ["celsius", "fahrenheit"]}, "days": SMALL})
    step = closed({"explanation": STRING, "output": STRING})
    yield closed(
        {"steps": {"type": "array", "items": {"$ref": "#/$defs/step"}, "maxItems": 2}}, **{"$defs": {"step": step}}
    )
    yield closed(
        {"answer": {"anyOf": [STRING, {"type": "null"}]}, "confidence": {"type": "number", "minimum": 0, "maximum": 1}}
    )
    shape = {
        "discriminator": {"propertyName": "kind"},
        "oneOf": [
            closed({"kind": {"const": "circle", "type": "string"}, "radius": SMALL}),
            closed({"kind": {"const": "square", "type": "string"}, "side": SMALL}),
        ],
    }
    yield closed({"shape": shape})
    yield closed(
        {
            "matrix": {
                "type": "array",
                "items": {"type": "array", "items": SMALL, "minItems": 2, "maxItems": 2},
                "minItems": 2,
                "maxItems": 2,
            }
        }
    )


def _hopeless() -> Iterator[Schema]:
    """No grammar can say it, nothing satisfies it, or it is no schema."""
    yield {"type": "array", "uniqueItems": True}
    yield {"type": "string", "pattern": "^(?=x)y$"}
    yield {"type": "string", "pattern": "["}
    yield {"type": "string", "pattern": "(a)\\1"}
    yield {"type": "string", "pattern": "\\p{Foo}"}
    yield {"type": "string", "format": "regex"}
    yield {"type": "number", "multipleOf": 0.01}
    yield {"type": "object", "minProperties": 3}
    yield {"$ref": "https://example.org/other"}
    yield {"$ref": "#/$defs/missing"}
    yield {"type": "array", "minItems": 3, "maxItems": 1}
    yield {"type": "string", "minimun": 3}
    yield {"enum": []}
    yield {"type": "nope"}
    yield False
    yield object_of({"next": {"$ref": "#"}}, required=["next"])
    yield {"allOf": [{"type": "string"}, {"type": "integer"}]}
    yield {"$dynamicRef": "#node"}
