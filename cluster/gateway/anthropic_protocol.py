"""The request bodies of /v1/messages, and what they are as a chat.

A field that this server does not have is refused by name, unless its value changes nothing. `cache_control` is such a
field wherever it may stand: every prompt's blocks are cached here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from cluster.gateway.chat_protocol import MAX_MESSAGES, MAX_TOOLS
from cluster.gateway.field_types import MAX_STOPS, Int64, Stop
from cluster.gateway.protocol import Strict, conflict


class CacheControl(Strict):
    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class Block(Strict):
    IGNORED: ClassVar[frozenset[str]] = frozenset({"cache_control"})

    cache_control: CacheControl | None = None


class TextBlock(Block):
    NOT_YET: ClassVar[Mapping[str, tuple[Any, ...]]] = {"citations": ([],)}

    type: Literal["text"]
    text: str


class ThinkingBlock(Strict):
    """What the model thought in an earlier turn; signatures are not checked."""

    IGNORED: ClassVar[frozenset[str]] = frozenset({"signature"})

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class ToolUseBlock(Block):
    NOT_YET: ClassVar[Mapping[str, tuple[Any, ...]]] = {"caller": ({"type": "direct"},), "toolset_name": ()}

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(Block):
    NOT_YET: ClassVar[Mapping[str, tuple[Any, ...]]] = {"toolset_name": ()}

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | Annotated[list[TextBlock], Field(fail_fast=True)] | None = None
    is_error: bool = False


AnyBlock = Annotated[TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock, Field(discriminator="type")]

ROLES: dict[type[Block | ThinkingBlock], str] = {
    ThinkingBlock: "assistant",
    ToolUseBlock: "assistant",
    ToolResultBlock: "user",
}


class Turn(Strict):
    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[AnyBlock], Field(min_length=1, fail_fast=True)]

    @model_validator(mode="after")
    def blocks_fit_the_role(self) -> Turn:
        for block in () if isinstance(self.content, str) else self.content:
            if ROLES.get(type(block), self.role) != self.role:
                raise ValueError(f"a block of type {block.type} is not allowed in a message of role {self.role}")
        return self


class Tool(Strict):
    NOT_YET: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "allowed_callers": (["direct"],),
        "defer_loading": (False,),
        "input_examples": ([],),
    }
    IGNORED: ClassVar[frozenset[str]] = frozenset({"cache_control", "eager_input_streaming"})

    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    type: Literal["custom"] = "custom"
    strict: bool | None = None
    cache_control: CacheControl | None = None
    eager_input_streaming: bool | None = None


class ToolChoice(Strict):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False

    @model_validator(mode="after")
    def a_tool_has_a_name(self) -> ToolChoice:
        if (self.type == "tool") != (self.name is not None):
            raise ValueError("tool_choice.name is required with the type 'tool', and allowed with no other")
        return self


class Thinking(Strict):
    NOT_YET: ClassVar[Mapping[str, tuple[Any, ...]]] = {"display": ("summarized",)}

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[Int64, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def a_budget_is_for_thinking(self) -> Thinking:
        if (self.type == "enabled") != (self.budget_tokens is not None):
            raise ValueError("thinking.budget_tokens is required with the type 'enabled', and allowed with no other")
        return self


class OutputConfig(Strict):
    """`format` has a type, which is 'json_schema', and a schema."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: dict[str, Any] | None = None

    @field_validator("format")
    @classmethod
    def format_is_a_schema(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is None:
            return None
        if (
            value.keys() != {"type", "schema"}
            or value["type"] != "json_schema"
            or not isinstance(value["schema"], dict)
        ):
            raise ValueError("output_config.format must have the type 'json_schema' and a schema, which is an object")
        return value


class Metadata(Strict):
    IGNORED: ClassVar[frozenset[str]] = frozenset({"user_id"})

    user_id: str | None = None


class CountTokensRequest(Strict):
    """POST /v1/messages/count_tokens"""

    NOT_YET: ClassVar[Mapping[str, tuple[Any, ...]]] = {"context_management": (), "mcp_servers": ([],)}
    IGNORED: ClassVar[frozenset[str]] = frozenset({"cache_control"})

    model: str
    messages: Annotated[list[Turn], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    system: str | Annotated[list[TextBlock], Field(fail_fast=True)] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = None

    @model_validator(mode="after")
    def last_turn_can_be_answered(self) -> CountTokensRequest:
        last = self.messages[-1].content
        if not isinstance(last, str) and any(isinstance(block, ToolUseBlock) for block in last):
            raise conflict("messages", "ends with a tool_use block, whose tool_result must follow")
        return self


class MessagesRequest(CountTokensRequest):
    """POST /v1/messages. The bounds of the sampling fields are those of chats."""

    NOT_YET: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **CountTokensRequest.NOT_YET,
        "container": (),
        "diagnostics": (),
        "inference_geo": (),
        "speed": ("standard",),
    }
    IGNORED: ClassVar[frozenset[str]] = frozenset({"cache_control", "metadata", "service_tier"})

    max_tokens: Int64
    stop_sequences: Annotated[list[Stop], Field(max_length=MAX_STOPS, fail_fast=True)] | None = None
    stream: bool = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int64 | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None

    @model_validator(mode="after")
    def thinking_leaves_room(self) -> MessagesRequest:
        budget = self.thinking.budget_tokens if self.thinking is not None else None
        if budget is not None and budget >= self.max_tokens:
            raise conflict("thinking", "has budget_tokens that leave no room in max_tokens")
        return self
