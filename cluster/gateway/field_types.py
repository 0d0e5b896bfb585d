"""Types of fields that several requests have. What pydantic does not check itself is shown in the OpenAPI document all
the same."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field, GetJsonSchemaHandler, WithJsonSchema
from pydantic_core import CoreSchema

from replicas.sampling.params import MAX_BIAS, MAX_LOGPROBS

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1024
MAX_STOP_TOKEN_IDS = 64
MAX_CHOICES = 128  # of all prompts together
MAX_BIASES = 1024
MAX_BAD_WORDS = 128
MAX_INT = 2**63 - 1


class Shown:
    """Bounds that the OpenAPI document shows. They are checked elsewhere: by `SamplingParams`, or with the model at
    hand."""

    def __init__(self, **bounds: float | str) -> None:
        self._bounds = bounds

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return handler(core) | self._bounds


def _not_zero(value: int) -> int:
    if value == 0:
        raise ValueError("truncate_prompt_tokens is 0, but must be at least 1, or -1 for as many as fit")
    return value


Int64 = Annotated[int, Field(ge=-MAX_INT - 1, le=MAX_INT)]
TokenId = Annotated[int, Shown(minimum=0)]
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
Bias = Annotated[float, Shown(minimum=-MAX_BIAS, maximum=MAX_BIAS)]
Penalty = Annotated[float, Shown(minimum=-2, maximum=2)]
Choices = Annotated[int, Field(ge=1, le=MAX_CHOICES)]
Logprobs = Annotated[int, Field(ge=0, le=MAX_LOGPROBS)]
Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]


_KEPT_TOKENS = {"anyOf": [{"type": "integer", "const": -1}, {"type": "integer", "minimum": 1, "maximum": MAX_INT}]}
_TEXT = {"type": "string", "minLength": 1}
_TEXTS = {"type": "array", "items": _TEXT, "minItems": 1}
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_PROMPT = {"anyOf": [_TEXT, _TEXTS, _IDS, {"type": "array", "items": _IDS, "minItems": 1}]}

_FORMATS = ["text", "json_object", "json_schema", "structural_tag"]
_RESPONSE_FORMAT = {
    "type": "object",
    "required": ["type"],
    "properties": {"type": {"type": "string", "enum": _FORMATS}},
}

KeptTokens = Annotated[Int64, Field(ge=-1), AfterValidator(_not_zero), WithJsonSchema(_KEPT_TOKENS)]
Prompt = Annotated[Any, WithJsonSchema(_PROMPT)]
ResponseFormat = Annotated[dict[str, Any], WithJsonSchema(_RESPONSE_FORMAT)]
