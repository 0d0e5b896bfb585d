"""The request body of chats: messages, tools, and what else only a chat has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from cluster.gateway.field_types import Int64, Logprobs, Shown
from cluster.gateway.protocol import SamplingFields, Strict, conflict

MAX_MESSAGES = 4096
MAX_TOOLS = 1024

_TOOL_NAME = re.compile(r"[a-zA-Z0-9_.:/-]{1,128}")
_CONSTRAINTS = ("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar")


class TextPart(Strict):
    NOT_YET: ClassVar[Mapping[str, tuple[Any, ...]]] = {"image_url": (), "input_audio": (), "file": ()}

    type: Literal["text"]
    text: str


class FunctionCall(Strict):
    name: str
    arguments: str


class ToolCall(Strict):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


_CONTENT = {"type": ["string", "array"]}
_BY_ROLE: list[Any] = [
    {"required": ["content"], "properties": {"content": _CONTENT, "tool_calls": {"type": "null"}}},
    {"required": ["content"], "properties": {"content": _CONTENT, "role": {"const": "assistant"}}},
    {
        "required": ["tool_calls"],
        "properties": {"tool_calls": {"type": "array", "minItems": 1}, "role": {"const": "assistant"}},
    },
]


class Message(Strict):
    model_config = ConfigDict(json_schema_extra={"additionalProperties": False, "anyOf": _BY_ROLE})

    # What the openai client's messages have beside their text.
    NOT_YET: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "annotations": ([],),
        "audio": (),
        "function_call": (),
        "refusal": (),
    }

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def has_content(self) -> Message:
        if self.content is None and self.role != "assistant":
            raise ValueError(f"content is required in a message of role {self.role}")
        if self.content is None and not self.tool_calls:
            raise ValueError("content is required in an assistant message without tool_calls")
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"tool_calls is not allowed in a message of role {self.role}")
        return self


class Function(Strict):
    """`strict`: its arguments always fit `parameters`, which is a JSON schema."""

    name: Annotated[str, Shown(pattern=f"^{_TOOL_NAME.pattern}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @field_validator("name")
    @classmethod
    def name_is_a_word(cls, name: str) -> str:
        if not _TOOL_NAME.fullmatch(name):
            raise ValueError(f"{name[:80]!r} cannot be a function's name: 1 to 128 letters, digits or any of _ . : / -")
        return name

    @field_validator("parameters")
    @classmethod
    def parameters_are_an_object(cls, parameters: dict[str, Any] | None) -> dict[str, Any] | None:
        if parameters is not None and parameters.get("type", "object") != "object":
            raise ValueError(f"parameters must be a schema of type 'object', not {str(parameters['type'])[:80]!r}")
        return parameters


class Tool(Strict):
    type: Literal["function"]
    function: Function


class FunctionName(Strict):
    name: str


class NamedTool(Strict):
    type: Literal["function"]
    function: FunctionName


class ChatRequest(SamplingFields):
    """POST /v1/chat/completions"""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    max_completion_tokens: Int64 | None = None
    logprobs: bool = False
    top_logprobs: Logprobs | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool = True
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    thinking_token_budget: Annotated[Int64, Field(ge=0)] | None = None
    include_reasoning: bool = True
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template: Annotated[str, Field(min_length=1)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @field_validator("tools")
    @classmethod
    def tools_differ(cls, tools: list[Tool] | None) -> list[Tool] | None:
        seen: set[str] = set()
        for index, tool in enumerate(tools or ()):
            if tool.function.name in seen:
                raise ValueError(f"tools[{index}].function.name is {tool.function.name!r}, as that of another tool is")
            seen.add(tool.function.name)
        return tools

    @model_validator(mode="after")
    def tool_choice_is_among_the_tools(self) -> ChatRequest:
        names = [tool.function.name for tool in self.tools or ()]
        if self.tool_choice == "required" and not names:
            raise conflict("tool_choice", "is 'required', but there are no tools")
        if isinstance(self.tool_choice, NamedTool) and self.tool_choice.function.name not in names:
            raise conflict("tool_choice", "names a function that is not among the tools")
        return self

    @model_validator(mode="after")
    def tools_leave_the_answer_free(self) -> ChatRequest:
        if not self.offered_tools:
            return self
        if self.response_format is not None and self.response_format.get("type") != "text":
            raise conflict("response_format", "is not allowed with tools, unless tool_choice is 'none'")
        for name in _CONSTRAINTS:
            if getattr(self, name) is not None:
                raise conflict(name, "is not allowed with tools, unless tool_choice is 'none'")
        return self

    @model_validator(mode="after")
    def final_message_can_be_continued(self) -> ChatRequest:
        if not self.continue_final_message:
            return self
        if self.add_generation_prompt:
            raise conflict("continue_final_message", "is not allowed when add_generation_prompt is true")
        if self.messages[-1].role != "assistant" or not self.messages[-1].content:
            raise conflict("continue_final_message", "needs a last message of role assistant with content")
        return self

    @model_validator(mode="after")
    def top_logprobs_need_logprobs(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise conflict("top_logprobs", "is only allowed when logprobs is true")
        return self

    @model_validator(mode="after")
    def one_limit(self) -> ChatRequest:
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise conflict("max_completion_tokens", "is given and differs from max_tokens")
        return self

    @property
    def output_limit(self) -> int | None:
        return self.max_completion_tokens if self.max_tokens is None else self.max_tokens

    @property
    def output_limit_field(self) -> str:
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    @property
    def output_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def offered_tools(self) -> list[Tool]:
        """The tools that the model may call."""
        return [] if self.tool_choice == "none" else self.tools or []
