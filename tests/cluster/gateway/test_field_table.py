"""The page of the API, and the OpenAPI document, tell the truth about every field."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.gateway.chat_protocol import ChatRequest
from cluster.gateway.field_table import ENDPOINTS, update
from cluster.gateway.protocol import CompletionRequest
from tests.support.sse import refused

PAGE = Path(__file__).parents[3] / "docs" / "api.md"
ENOUGH = {
    "/v1/chat/completions": {"model": "test", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
    "/v1/completions": {"model": "test", "prompt": "hi", "max_tokens": 2},
}
REQUESTS = {"/v1/chat/completions": ChatRequest, "/v1/completions": CompletionRequest}


def test_the_page_is_of_today():
    page = PAGE.read_text()
    assert update(page) == page, "run: python -m cluster.gateway.field_table docs/api.md"


def test_every_endpoint_with_a_body_is_in_the_table(http):
    paths = http.get("/openapi.json").json()["paths"]
    assert {path for path, methods in paths.items() if "post" in methods} == ENDPOINTS.keys()


@pytest.mark.parametrize("path", ENOUGH)
def test_a_field_that_is_refused_is_taken_with_the_values_that_change_nothing(http, path):
    model = REQUESTS[path]
    for name in model.NOT_YET.keys() - model.model_fields.keys():
        assert refused(http.post(path, json=ENOUGH[path] | {name: {"other": 1}}), param=name).startswith(name)
    harmless = {name: values[0] for name, values in model.NOT_YET.items() if values and name not in model.model_fields}
    response = http.post(path, json=ENOUGH[path] | harmless)
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("path", ENOUGH)
def test_a_field_without_effect_is_checked_all_the_same(http, path):
    for name in REQUESTS[path].IGNORED:
        refused(http.post(path, json=ENOUGH[path] | {name: 5}), param=name)


@pytest.mark.parametrize("path", ENOUGH)
def test_the_bounds_of_numbers_are_the_true_ones(http, path):
    schema = http.get("/openapi.json").json()["components"]["schemas"][REQUESTS[path].__name__]
    for name, field in schema["properties"].items():
        kinds = [kind for kind in _alternatives(field) if kind.get("type") in ("integer", "number")]
        for kind in kinds:
            outside = [kind[bound] + step for bound, step in (("minimum", -1), ("maximum", 1)) if bound in kind]
            outside += [kind["exclusiveMinimum"]] if "exclusiveMinimum" in kind else []
            for value in outside:
                refused(http.post(path, json=ENOUGH[path] | {name: value}))


def _alternatives(schema):
    """The schemas that one of `anyOf` may be, at all depths."""
    if "anyOf" not in schema:
        return [schema]
    return [inner for one in schema["anyOf"] for inner in _alternatives(one)]
