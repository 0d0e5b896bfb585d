"""The request body of /v1/responses, which keeps nothing: a conversation comes whole with every request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, field_validator

from cluster.gateway.chat_protocol import MAX_MESSAGES, MAX_TOOLS
from cluster.gateway.field_types import Int64
from cluster.gateway.protocol import Strict

STATUS_AND_ID = frozenset({"id", "status"})  # items that came from here are sent back with these


class TextPart(Strict):
    """`input_text` from the caller, `output_text` in an answer that is sent back."""

    NOT_YET: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "annotations": ([],),
        "detail": (),
        "file_data": (),
        "file_id": (),
        "file_url": (),
        "image_url": (),
        "input_audio": (),
        "logprobs": ([],),
        "refusal": (),
    }

    type: Literal["input_text", "output_text"]
    text: str


class ReasoningText(Strict):
    type: Literal["reasoning_text"]
    text: str


Content = str | Annotated[list[TextPart], Field(fail_fast=True)]


class MessageItem(Strict):
    NOT_YET: ClassVar[Mapping[str, tuple[Any, ...]]] = {"phase": ()}
    IGNORED: ClassVar[frozenset[str]] = STATUS_AND_ID

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    id: str | None = None
    status: str | None = None


class CallItem(Strict):
    NOT_YET: ClassVar[Mapping[str, tuple[Any, ...]]] = {"caller": ({"type": "direct"},), "namespace": ()}
    IGNORED: ClassVar[frozenset[str]] = STATUS_AND_ID

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: str | None = None


class CallOutputItem(Strict):
    NOT_YET: ClassVar[Mapping[str, tuple[Any, ...]]] = {"caller": ({"type": "direct"},), "name": (), "namespace": ()}
    IGNORED: ClassVar[frozenset[str]] = STATUS_AND_ID

    type: Literal["function_call_output"]
    call_id: str
    output: Content
    id: str | None = None
    status: str | None = None


class ReasoningItem(Strict):
    NOT_YET: ClassVar[Mapping[str, tuple[Any, ...]]] = {"encrypted_content": (), "summary": ([],)}
    IGNORED: ClassVar[frozenset[str]] = STATUS_AND_ID

    type: Literal["reasoning"]
    content: Annotated[list[ReasoningText], Field(fail_fast=True)] | None = None
    id: str | None = None
    status: str | None = None


def _kind(item: Any) -> Any:
    return item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", None)


Item = CallItem | CallOutputItem | ReasoningItem | MessageItem
AnyItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[CallOutputItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(_kind),
]


class FunctionTool(Strict):
    NOT_YET: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "allowed_callers": (["direct"],),
        "defer_loading": (False,),
        "output_schema": (),
    }

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedFunction(Strict):
    type: Literal["function"]
    name: str


class TextConfig(Strict):
    """`format`: {"type": "text"}, {"type": "json_object"}, or {"type": "json_schema"} with a name and a schema."""

    NOT_YET: ClassVar[Mapping[str, tuple[Any, ...]]] = {"verbosity": ("medium",)}

    format: dict[str, Any] | None = None

    @field_validator("format")
    @classmethod
    def format_is_known(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is None or value in ({"type": "text"}, {"type": "json_object"}):
            return value
        if value.get("type") != "json_schema" or not isinstance(value.get("schema"), dict):
            raise ValueError("text.format must be of type 'text', 'json_object', or 'json_schema' with a schema")
        if unknown := value.keys() - {"type", "name", "schema", "strict", "description"}:
            raise ValueError(f"text.format.{min(unknown)[:60]} is not a known field")
        return value


class Reasoning(Strict):
    NOT_YET: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "context": ("auto",),
        "generate_summary": (),
        "mode": ("standard",),
        "summary": (),
    }

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None


class StreamOptions(Strict):
    IGNORED: ClassVar[frozenset[str]] = frozenset({"include_obfuscation"})

    include_obfuscation: bool | None = None


class ResponsesRequest(Strict):
    """POST /v1/responses. The bounds of the sampling fields are those of chats. `store` is false where it is left
    out."""

    NOT_YET: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "background": (False,),
        "context_management": ([],),
        "conversation": (),
        "include": ([],),
        "max_tool_calls": (),
        "moderation": (),
        "previous_response_id": (),
        "prompt": (),
        "prompt_cache_options": (),
        "store": (False,),
        "top_logprobs": (0,),
        "truncation": ("disabled",),
    }
    IGNORED: ClassVar[frozenset[str]] = frozenset(
        {"metadata", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "user"}
    )

    model: str
    input: str | Annotated[list[AnyItem], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    instructions: str | None = None
    max_output_tokens: Int64 | None = None
    temperature: float | None = None
    top_p: float | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedFunction | None = None
    parallel_tool_calls: bool = True
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    service_tier: Literal["auto", "default", "priority", "flex"] | None = None
    metadata: dict[str, str] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    user: str | None = None
