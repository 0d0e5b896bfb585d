"""The request bodies of the OpenAI endpoints. Unknown fields are refused by name, never ignored.

Null means "not given" for every field. A field that this server does not have yet is accepted only with a value that
changes nothing (`n: 1`, `presence_penalty: 0`); any other value is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, LiteralString

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from cluster.gateway.errors import sendable

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1024
MAX_STOP_TOKEN_IDS = 64
MAX_PROMPTS = 128
MAX_MESSAGES = 4096
MAX_INT = 2**63 - 1

# Fields of OpenAI's and vLLM's requests that this server lacks, with the values that change nothing. An endpoint's own
# field may be among them: then the other endpoint lacks it.
MISSING_FIELDS: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "logprobs": (False,),
    "echo": (False,),
    "presence_penalty": (0, 0.0),
    "frequency_penalty": (0, 0.0),
    "repetition_penalty": (1, 1.0),
    "logit_bias": ({},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "store": (False,),
    "modalities": (["text"],),
} | dict.fromkeys(
    (
        "add_generation_prompt",
        "allowed_token_ids",
        "audio",
        "bad_words",
        "chat_template",
        "chat_template_kwargs",
        "continue_final_message",
        "function_call",
        "functions",
        "guided_choice",
        "guided_grammar",
        "guided_json",
        "guided_regex",
        "max_completion_tokens",
        "moderation",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_retention",
        "prompt_logprobs",
        "reasoning_effort",
        "request_id",
        "safety_identifier",
        "skip_special_tokens",
        "structured_outputs",
        "suffix",
        "top_logprobs",
        "truncate_prompt_tokens",
        "verbosity",
        "web_search_options",
    ),
    (),
)


class Strict(BaseModel):
    """A JSON object of which every field is known, or refused at the first that is not."""

    model_config = ConfigDict(frozen=True)

    NOT_YET: ClassVar[Mapping[str, tuple[Any, ...]]] = {}

    @model_validator(mode="before")
    @classmethod
    def only_known_fields(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        for name, field in value.items():
            if name in cls.model_fields:
                continue
            if name not in cls.NOT_YET:
                raise _fault("unknown_parameter", name, "is not a known field")
            if field is not None and not _is_one_of(field, cls.NOT_YET[name]):
                raise _fault("unsupported_parameter", name, "is not supported by this server")
        return {name: field for name, field in value.items() if field is not None and name in cls.model_fields}


Int64 = Annotated[int, Field(ge=-MAX_INT - 1, le=MAX_INT)]


class StreamOptions(Strict):
    include_usage: bool = False


Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]


class SamplingFields(Strict):
    """What chat and text completions have in common. The bounds stand in `SamplingParams`."""

    NOT_YET: ClassVar[Mapping[str, tuple[Any, ...]]] = MISSING_FIELDS

    model: str
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int64 | None = None
    min_p: float | None = None
    seed: Int64 | None = None
    max_tokens: Int64 | None = None
    min_tokens: Int64 | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS, fail_fast=True)] | None = None
    stop_token_ids: Annotated[list[int], Field(max_length=MAX_STOP_TOKEN_IDS, fail_fast=True)] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: Int64 | None = None
    service_tier: Literal["auto", "default", "priority", "flex"] | None = None
    cache_salt: Annotated[str, Field(max_length=256)] | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None

    @model_validator(mode="after")
    def stream_options_need_a_stream(self) -> SamplingFields:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is only allowed when stream is true")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def output_limit(self) -> int | None:
        """The most tokens that the caller wants, from the field that `output_limit_field` names."""
        return self.max_tokens

    @property
    def output_limit_field(self) -> str:
        return "max_tokens"

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


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


class Message(Strict):
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


class ChatRequest(SamplingFields):
    """POST /v1/chat/completions"""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    max_completion_tokens: Int64 | None = None

    @model_validator(mode="after")
    def one_limit(self) -> ChatRequest:
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise ValueError("max_tokens and max_completion_tokens are both given and differ")
        return self

    @property
    def output_limit(self) -> int | None:
        return self.max_completion_tokens if self.max_tokens is None else self.max_tokens

    @property
    def output_limit_field(self) -> str:
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"


class CompletionRequest(SamplingFields):
    """POST /v1/completions. `prompt` is a text, a list of texts, a list of token ids, or a list of such lists. Whether
    the ids are the model's is checked with the model at hand."""

    prompt: Any

    @field_validator("prompt")
    @classmethod
    def prompt_is_text_or_token_ids(cls, prompt: Any) -> Any:
        if isinstance(prompt, str):
            return prompt
        if not isinstance(prompt, list) or not prompt:
            raise ValueError("prompt must be a text, a list of texts, a list of token ids or a list of such lists")
        if type(prompt[0]) is int:
            return prompt
        if len(prompt) > MAX_PROMPTS:
            raise ValueError(f"prompt has {len(prompt)} entries, but may have at most {MAX_PROMPTS}")
        if not all(isinstance(entry, str) for entry in prompt) and not all(
            isinstance(entry, list) and entry for entry in prompt
        ):
            raise ValueError(
                "prompt is a list, so its entries must be all texts, all token ids (whole numbers) "
                "or all non-empty lists of token ids"
            )
        return prompt

    @property
    def prompts(self) -> list[str | list[Any]]:
        if isinstance(self.prompt, str) or type(self.prompt[0]) is int:
            return [self.prompt]
        return list(self.prompt)


def _fault(kind: LiteralString, name: str, what: LiteralString) -> PydanticCustomError:
    return PydanticCustomError(kind, what, {"name": sendable(name)})


def _is_one_of(value: Any, neutral: tuple[Any, ...]) -> bool:
    return any(value == one and type(value) is type(one) for one in neutral)
