"""The fields of every endpoint as tables in Markdown, made from the request models themselves.

    python -m cluster.gateway.field_table docs/api.md

puts them between the two marks in that page.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from cluster.gateway.anthropic_protocol import CountTokensRequest, MessagesRequest
from cluster.gateway.chat_protocol import ChatRequest
from cluster.gateway.embeddings import EmbeddingRequest
from cluster.gateway.field_types import MAX_INT
from cluster.gateway.protocol import CompletionRequest, Strict
from cluster.gateway.responses_protocol import ResponsesRequest
from cluster.gateway.tokenize import DetokenizeRequest, TokenizeRequest

ENDPOINTS: dict[str, type[Strict]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/messages": MessagesRequest,
    "/v1/messages/count_tokens": CountTokensRequest,
    "/v1/embeddings": EmbeddingRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}

BEGIN = "<!-- fields: made by `python -m cluster.gateway.field_table docs/api.md` -->"
END = "<!-- end of fields -->"

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Field:
    """`status`: "yes", "no effect", or "refused". `values`: what it may be."""

    name: str
    status: str
    values: str


def tables() -> str:
    """Two tables, of the fields that some endpoint has and of those that none has: one row for each field, one column
    for each endpoint."""
    columns = {path: {field.name: field for field in _fields(model)} for path, model in ENDPOINTS.items()}
    rows: dict[bool, list[str]] = {True: [], False: []}
    for name in sorted({name for column in columns.values() for name in column}):
        found = [column.get(name) for column in columns.values()]
        is_had = any(field.status != "refused" for field in found if field)
        cells = [f"`{name}`", *(field.status if field else "" for field in found), _values(found)]
        rows[is_had].append(_row(cells))
    head = ["field", *(f"`{path}`" for path in columns)]
    top, rule = _row([*head, "values"]), _row(["---"] * (len(head) + 1))
    other_top = _row([*head, "taken all the same, as it changes nothing"])
    return "\n".join([top, rule, *rows[True], "", other_top, rule, *rows[False]])


def update(page: str) -> str:
    """The page with the tables of today between its marks."""
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{after}"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _values(found: list[Field | None]) -> str:
    """Those of the endpoints that have the field; where none has, those that are taken because they change nothing."""
    texts = [field.values for field in found if field and field.status != "refused"]
    kinds = {text.partition(",")[0]: text for text in reversed(texts or [field.values for field in found if field])}
    return "; or ".join(text for text in reversed(kinds.values()) if text)


def _fields(model: type[Strict], prefix: str = "") -> Iterator[Field]:
    schema = model.model_json_schema()
    for name, field in model.model_fields.items():
        status = "no effect" if name in model.IGNORED else "yes"
        yield Field(prefix + name, status, _described(schema["properties"][name], schema, name))
        for inner, is_list in _models(field.annotation):
            yield from _fields(inner, f"{prefix}{name}{'[]' if is_list else ''}.")
    for name, neutral in model.NOT_YET.items():
        if name not in model.model_fields:
            values = ", ".join(f"`{json.dumps(value)}`" for value in neutral)
            yield Field(prefix + name, "refused", values)


def _models(annotation: Any, is_list: bool = False) -> Iterator[tuple[type[Strict], bool]]:
    """The request models in a field's type, and whether they are the entries of a list."""
    if isinstance(annotation, type) and issubclass(annotation, Strict):
        yield annotation, is_list
    for part in get_args(annotation):
        yield from _models(part, is_list or getattr(annotation, "__origin__", None) is list)


def _described(schema: Schema, root: Schema, name: str) -> str:
    text = _kind(schema, root)
    if name in root.get("required", ()):
        return f"{text}, required"
    default = schema.get("default")
    return text if default is None else f"{text}, default `{json.dumps(default)}`"


def _kind(schema: Schema, root: Schema) -> str:
    if "$ref" in schema:
        return _kind(root["$defs"][schema["$ref"].rsplit("/", 1)[1]], root)
    if "anyOf" in schema and "type" not in schema:
        kinds = (_kind(one, root) for one in schema["anyOf"] if one.get("type") != "null")
        return " or ".join(dict.fromkeys(kinds))
    if "const" in schema or "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    match schema.get("type"):
        case "array":
            entries = _kind(schema.get("items", {}), root)
            return "list" + _bounds(schema, "minItems", "maxItems", " entries") + f" of: {entries}"
        case "string":
            return "text" + _bounds(schema, "minLength", "maxLength", " characters")
        case "integer":
            return "whole number" + _bounds(schema, "minimum", "maximum")
        case "number":
            return "number" + _bounds(schema, "minimum", "maximum")
        case "boolean":
            return "true or false"
        case "object":
            return "object" + _bounds(schema, "minProperties", "maxProperties", " entries")
    return "any JSON"


def _bounds(schema: Schema, low: str, high: str, unit: str = "") -> str:
    above, least, most = (schema.get(name) for name in ("exclusiveMinimum", low, high))
    words = [
        f"above {above}" if above is not None else None,
        f"at least {least}" if least is not None and least > -MAX_INT else None,
        f"at most {most}" if most is not None and most < MAX_INT else None,
    ]
    said = " and ".join(word for word in words if word)
    return f" ({said}{unit})" if said else ""


def main() -> None:
    page = Path(sys.argv[1])
    page.write_text(update(page.read_text()))


if __name__ == "__main__":
    main()
