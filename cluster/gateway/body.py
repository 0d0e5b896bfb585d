"""From the bytes of a request body to a checked protocol object, or a 4xx that names the fault."""

from __future__ import annotations

import json
from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from cluster.gateway.errors import ApiError, bad_request

Model = TypeVar("Model", bound=BaseModel)


def parse_body(raw: bytes, content_type: str, model: type[Model]) -> Model:
    """Raises ApiError. The message never repeats the caller's input at length."""
    kind = content_type.split(";", maxsplit=1)[0].strip().lower()
    if kind not in ("", "application/json"):
        raise ApiError(415, f"Content-Type is {kind[:80]!r}, but must be application/json.", param="Content-Type")
    value = _parse_json(raw)
    if not isinstance(value, dict):
        raise bad_request("The request body must be a JSON object.")
    try:
        return model.model_validate(value, strict=True)
    except ValidationError as error:
        raise _explain(error, model) from None


def _parse_json(raw: bytes) -> Any:
    if not raw:
        raise bad_request("The request body is empty, but must be a JSON object.")
    try:
        return json.loads(raw.decode("utf-8"), object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise bad_request(f"The request body is not valid UTF-8 (at byte {error.start}).") from None
    except json.JSONDecodeError as error:
        raise bad_request(f"The request body is not valid JSON: {error.msg} at character {error.pos}.") from None
    except RecursionError:
        raise bad_request("The request body is nested too deeply.") from None


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) == len(pairs):
        return value
    seen: set[str] = set()
    twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
    raise bad_request(f"The key {twice[:80]!r} occurs twice in one JSON object.", twice[:80])


def _no_constant(name: str) -> None:
    raise bad_request(f"The request body is not valid JSON: {name} is not a JSON number.")


def _explain(error: ValidationError, model: type[BaseModel]) -> ApiError:
    """One fault, by name. Where a value could have been meant in several ways, pydantic lists a fault for each: the
    one that lies deepest comes from the way that fits best."""
    fault = max(error.errors(include_url=False, include_input=False), key=lambda fault: len(fault["loc"]))
    path = [str(part)[:60] for part in fault["loc"] if isinstance(part, int) or part in _field_names(model)]
    param = ".".join(path) or None
    if fault["type"] == "extra_forbidden":
        field = str(fault["loc"][-1])[:60]
        if len(fault["loc"]) == 1 and field in getattr(model, "NOT_YET", ()):
            return bad_request(f"{field} is not supported by this server.", field, "unsupported_parameter")
        param = ".".join([*path, field])
        return bad_request(f"{param} is not a known field.", param, "unknown_parameter")
    if fault["type"] == "value_error":
        return bad_request(f"{fault['ctx']['error']}.", param)
    if fault["type"] == "missing":
        return bad_request(f"{param} is required.", param, "missing_required_parameter")
    return bad_request(f"{param}: {fault['msg'][0].lower()}{fault['msg'][1:]}.", param)


@cache
def _field_names(model: type[BaseModel]) -> frozenset[str]:
    """All field names of `model` and of the models inside it; other parts of a fault's path name types."""
    schema = model.model_json_schema()
    return frozenset(name for part in (schema, *schema.get("$defs", {}).values()) for name in part["properties"])
