"""From the bytes of a request body to a checked protocol object, or a 4xx that names the fault.

All of this runs on the event loop, so what would take long is refused before it is looked at closely.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from cluster.gateway.errors import ApiError, bad_request

Model = TypeVar("Model", bound=BaseModel)

MAX_VALUES = 16_384


def read_object(raw: bytes, headers: Mapping[str, str]) -> dict[str, Any]:
    """The JSON object that a body is. Raises ApiError, and never repeats the caller's input at length."""
    _check_headers(headers)
    value = _parse_json(raw)
    if not isinstance(value, dict):
        raise bad_request("The request body must be a JSON object.")
    return value


def check_object(value: dict[str, Any], model: type[Model], own_limits: Collection[str] = ("prompt",)) -> Model:
    """`own_limits` are the fields that may be large: the model itself bounds them. Raises ApiError."""
    _check_sizes(value, model, own_limits)
    try:
        return model.model_validate(value, strict=True)
    except ValidationError as error:
        raise _explain(error, model) from None


def _check_headers(headers: Mapping[str, str]) -> None:
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise ApiError(
            415,
            f"Content-Encoding is {encoding[:80]!r}, but bodies must be sent as they are.",
            param="Content-Encoding",
        )
    kind, *parameters = (part.strip() for part in headers.get("content-type", "").lower().split(";"))
    if kind not in ("", "application/json"):
        raise ApiError(415, f"Content-Type is {kind[:80]!r}, but must be application/json.", param="Content-Type")
    for parameter in parameters:
        name, _, charset = parameter.partition("=")
        if name.strip() == "charset" and charset.strip(' "') not in ("utf-8", "utf8"):
            raise ApiError(
                415, f"Content-Type has the charset {charset[:80]!r}, but JSON is UTF-8.", param="Content-Type"
            )


def _parse_json(raw: bytes) -> Any:
    if not raw:
        raise bad_request("The request body is empty, but must be a JSON object.")
    try:
        return json.loads(raw.decode("utf-8"), object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise bad_request(f"The request body is not valid UTF-8 (at byte {error.start}).") from None
    except json.JSONDecodeError as error:
        raise bad_request(f"The request body is not valid JSON: {error.msg} at character {error.pos}.") from None
    except ValueError:  # Python's limit on the digits of an integer
        raise bad_request("The request body has a number with thousands of digits.") from None
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


def _check_sizes(value: dict[str, Any], model: type[BaseModel], own_limits: Collection[str]) -> None:
    """Bounds what pydantic has to look at: of unknown fields only the first."""
    for name in value.keys() & model.model_fields.keys() - set(own_limits):
        if _holds_more_values(value[name], MAX_VALUES):
            raise bad_request(f"{name} holds more than {MAX_VALUES} values.", name)


def _holds_more_values(field: Any, most: int) -> bool:
    """Whether lists and objects at all depths have more than `most` entries."""
    count, inside = 0, [field]
    while inside:
        value = inside.pop()
        if isinstance(value, (dict, list)):
            count += len(value)
            if count > most:
                return True
            inside.extend(value.values() if isinstance(value, dict) else value)
    return False


def _explain(error: ValidationError, model: type[BaseModel]) -> ApiError:
    """One fault, by name. Where a value could have been meant in several ways, pydantic lists a fault for each: the
    one that lies deepest comes from the way that fits best."""
    fault = max(error.errors(include_url=False, include_input=False), key=lambda fault: len(fault["loc"]))
    path = [str(part)[:60] for part in fault["loc"] if isinstance(part, int) or part in _field_names(model)]
    kind, context = fault["type"], fault.get("ctx", {})
    if kind in ("unknown_parameter", "unsupported_parameter", "conflict"):
        field = ".".join([*path, context["name"][:60]])
        return bad_request(f"{field} {fault['msg']}.", field, None if kind == "conflict" else kind)
    param = ".".join(path) or None
    if kind == "value_error":
        return bad_request(f"{context['error']}.", param)
    if kind == "missing":
        return bad_request(f"{param} is required.", param, "missing_required_parameter")
    return bad_request(f"{param}: {fault['msg'][0].lower()}{fault['msg'][1:]}.", param)


@cache
def _field_names(model: type[BaseModel]) -> frozenset[str]:
    """All field names of `model` and of the models inside it; other parts of a fault's path name types."""
    schema = model.model_json_schema()
    return frozenset(
        name for part in (schema, *schema.get("$defs", {}).values()) for name in part.get("properties", ())
    )
