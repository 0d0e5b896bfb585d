"""The request bodies of the OpenAI endpoints. Unknown fields are refused by name, never ignored.

A field that this server does not have yet is accepted only with the value that changes nothing (`n: 1`,
`presence_penalty: 0`); any other value is refused by name.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from replicas.sampling.params import MAX_SEED

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1024
MAX_STOP_TOKEN_IDS = 64
MAX_PROMPTS = 128
MAX_MESSAGES = 4096

# Fields of OpenAI's and vLLM's requests that change nothing when they have one of these values.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "logprobs": (False,),
    "top_logprobs": (),
    "echo": (False,),
    "suffix": (),
    "presence_penalty": (0, 0.0),
    "frequency_penalty": (0, 0.0),
    "repetition_penalty": (1, 1.0),
    "logit_bias": ({},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "modalities": (["text"],),
}


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StreamOptions(Strict):
    include_usage: bool = False


Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]


class SamplingFields(Strict):
    """What chat and text completions have in common. The bounds stand in `SamplingParams`."""

    NOT_YET: ClassVar[frozenset[str]] = frozenset(NEUTRAL) | {
        "allowed_token_ids",
        "bad_words",
        "prompt_logprobs",
        "structured_outputs",
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
        "functions",
        "function_call",
        "reasoning_effort",
        "audio",
        "prediction",
        "web_search_options",
        "truncate_prompt_tokens",
        "add_generation_prompt",
        "continue_final_message",
        "chat_template",
        "chat_template_kwargs",
        "priority",
        "request_id",
        "skip_special_tokens",
        "max_tokens",
        "max_completion_tokens",
    }

    model: str
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: Annotated[int, Field(ge=-MAX_SEED - 1, le=MAX_SEED)] | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS)] | None = None
    stop_token_ids: Annotated[list[int], Field(max_length=MAX_STOP_TOKEN_IDS)] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: Annotated[str, Field(max_length=256)] | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None

    @model_validator(mode="before")
    @classmethod
    def drop_neutral(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: field for key, field in value.items() if key in cls.model_fields or not _is_neutral(key, field)}

    @model_validator(mode="after")
    def stream_options_need_a_stream(self) -> SamplingFields:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is only allowed when stream is true")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class TextPart(Strict):
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
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    refusal: None = None

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

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: int | None = None

    @model_validator(mode="after")
    def one_limit(self) -> ChatRequest:
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise ValueError("max_tokens and max_completion_tokens are both given and differ")
        return self

    @property
    def output_limit(self) -> int | None:
        return self.max_completion_tokens if self.max_tokens is None else self.max_tokens


class CompletionRequest(SamplingFields):
    """POST /v1/completions. `prompt` is a text, a list of texts, a list of token ids, or a list of such lists."""

    prompt: Any

    @field_validator("prompt")
    @classmethod
    def prompt_is_text_or_token_ids(cls, prompt: Any) -> Any:
        if isinstance(prompt, str) or _is_token_ids(prompt):
            return prompt
        if not isinstance(prompt, list) or not prompt:
            raise ValueError("prompt must be a text, a list of texts, a list of token ids or a list of such lists")
        if len(prompt) > MAX_PROMPTS:
            raise ValueError(f"prompt has {len(prompt)} entries, but may have at most {MAX_PROMPTS}")
        if not all(isinstance(entry, str) for entry in prompt) and not all(_is_token_ids(entry) for entry in prompt):
            raise ValueError(
                "prompt is a list, so its entries must be all texts, all token ids (whole numbers) "
                "or all non-empty lists of token ids"
            )
        return prompt

    @property
    def prompts(self) -> list[str | list[int]]:
        if isinstance(self.prompt, str) or isinstance(self.prompt[0], int):
            return [self.prompt]
        return list(self.prompt)


def _is_token_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(entry) is int for entry in value)


def _is_neutral(name: str, value: Any) -> bool:
    if name not in NEUTRAL:
        return False
    return value is None or any(value == neutral and type(value) is type(neutral) for neutral in NEUTRAL[name])
