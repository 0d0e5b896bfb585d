"""The OpenAPI document: the routes' request bodies as shared schemas, and all that an operation may answer."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

Json = dict[str, Any]

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_ANTHROPIC_ERROR = {
    "type": "object",
    "required": ["type", "error"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
        },
    },
}
_FAULTS = {
    "400": "A field is wrong, unknown or unsupported, or the prompt is too long",
    "401": "No API key, or one that is not known",
    "404": "No such model",
    "413": "The body is too large",
    "415": "The body is not JSON, not UTF-8, or compressed",
    "429": "The key's limit is reached, or the server is full",
    "500": "A fault of the server's own",
    "503": "No replica can answer now",
}
_OF_READING = ("401", "404", "500", "503")


def openapi(app: FastAPI, models: Collection[str], needs_key: bool) -> Json:
    """The document of all routes of `app`, which serves `models`."""
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    schemas = {"Error": _ERROR, "AnthropicError": _ANTHROPIC_ERROR}
    document["components"] = {"schemas": schemas}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            body = _share_body(operation, schemas)
            operation["responses"] = _responses(path, method, may_stream="stream" in body)
            if "model" in body:
                _name_models(body["model"], models)
    if needs_key:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document


def _share_body(operation: Json, schemas: Json) -> Json:
    """Moves a request body's schema, and those inside it, to the document's own; returns its properties."""
    media = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if media is None:
        return {}
    title = media["schema"]["title"]
    body: Json = _shared(media["schema"], title)
    schemas |= {f"{title}.{name}": schema for name, schema in body.pop("$defs", {}).items()}
    schemas[title] = body
    media["schema"] = {"$ref": f"#/components/schemas/{title}"}
    properties: Json = body["properties"]
    return properties


def _name_models(field: Json, models: Collection[str]) -> None:
    for kind in field.get("anyOf", [field]):
        if kind.get("type") == "string":
            kind["enum"] = sorted(models)


def _shared(schema: Any, title: str) -> Any:
    """The schema with its references to `$defs` pointing to where these go, and null allowed where a field may be left
    out."""
    if isinstance(schema, list):
        return [_shared(one, title) for one in schema]
    if not isinstance(schema, dict):
        return schema
    shared = {key: _shared(value, title) for key, value in schema.items()}
    if "$ref" in shared:
        shared["$ref"] = shared["$ref"].replace("#/$defs/", f"#/components/schemas/{title}.")
    for name, field in shared.get("properties", {}).items():
        if name not in shared.get("required", ()) and {"type": "null"} not in field.get("anyOf", ()):
            shared["properties"][name] = {"anyOf": [field, {"type": "null"}]}
    return shared


def _responses(path: str, method: str, may_stream: bool) -> Json:
    error = "AnthropicError" if path.startswith("/v1/messages") else "Error"
    kind = "text/plain" if path == "/metrics" else "application/json"
    content: Json = {kind: {"schema": {"type": "string" if kind == "text/plain" else "object"}}}
    if may_stream:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    responses: Json = {"200": {"description": "The answer", "content": content}}
    for status, description in _FAULTS.items():
        if method == "post" or status in _OF_READING:
            schema = {"$ref": f"#/components/schemas/{error}"}
            responses[status] = {"description": description, "content": {"application/json": {"schema": schema}}}
    return responses
