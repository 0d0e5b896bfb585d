"""The OpenAPI document is one that tools can read: every reference leads somewhere, every status is told."""

from __future__ import annotations

import json
import re

import pytest

from tests.support.sse import refused


@pytest.fixture(scope="module")
def document(parrot):
    with parrot.client() as client:
        return client.get("/openapi.json").json()


def test_every_reference_leads_somewhere(document):
    found = set(re.findall(r'"\$ref": "([^"]*)"', json.dumps(document)))
    assert found
    for reference in found:
        assert reference.startswith("#/components/schemas/")
        assert reference.removeprefix("#/components/schemas/") in document["components"]["schemas"]


def test_every_body_is_closed_and_named(document):
    for path, operations in document["paths"].items():
        if "post" not in operations:
            continue
        schema = operations["post"]["requestBody"]["content"]["application/json"]["schema"]
        body = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
        assert body["additionalProperties"] is False, path


def test_streams_and_errors_are_told(document, http):
    told = document["paths"]["/v1/completions"]["post"]["responses"]
    assert "text/event-stream" in told["200"]["content"]
    faults = [
        ({"json": {"model": "test"}}, 400),
        ({"json": {"model": "other", "prompt": "x"}}, 404),
        ({"content": b"x" * 5_000_000}, 413),
        ({"content": b"{}", "headers": {"Content-Type": "text/plain"}}, 415),
    ]
    for request, status in faults:
        refused(http.post("/v1/completions", **request), status)
        assert str(status) in told
    assert "text/plain" in document["paths"]["/metrics"]["get"]["responses"]["200"]["content"]


def test_the_models_are_named(document):
    schemas = document["components"]["schemas"]
    assert schemas["CompletionRequest"]["properties"]["model"]["enum"] == ["test"]
    assert {"type": "null"} in schemas["DetokenizeRequest"]["properties"]["model"]["anyOf"]


def test_a_key_is_asked_for_only_where_there_are_keys(document):
    assert "security" not in document
