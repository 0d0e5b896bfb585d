"""The request bodies of the OpenAI endpoints. Unknown fields are refused by name, never ignored.

Null means "not given" for every field. A field that this server does not have is accepted only with a value that
changes nothing (`use_beam_search: false`); any other value is refused by name. `foreign_fields.py` lists them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, LiteralString

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from cluster.gateway.errors import sendable
from cluster.gateway.field_types import (
    MAX_BAD_WORDS,
    MAX_BIASES,
    MAX_CHOICES,
    MAX_STOP_TOKEN_IDS,
    MAX_STOPS,
    Bias,
    Choices,
    Int64,
    KeptTokens,
    Logprobs,
    Penalty,
    Prompt,
    ResponseFormat,
    Shown,
    Stop,
    TokenIds,
)
from cluster.gateway.foreign_fields import REFUSED, WITHOUT_EFFECT

MAX_PROMPTS = 128


class Strict(BaseModel):
    """A JSON object of which every field is known, or refused at the first that is not."""

    model_config = ConfigDict(frozen=True, json_schema_extra={"additionalProperties": False})

    NOT_YET: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    IGNORED: ClassVar[frozenset[str]] = frozenset()  # those of the fields that have no effect

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


class StreamOptions(Strict):
    NOT_YET: ClassVar[Mapping[str, tuple[Any, ...]]] = {"continuous_usage_stats": (False,)}
    IGNORED: ClassVar[frozenset[str]] = frozenset({"include_obfuscation"})

    include_usage: bool = False
    include_obfuscation: bool | None = None


class SamplingFields(Strict):
    """What chat and text completions have in common. The bounds stand in `SamplingParams`."""

    NOT_YET: ClassVar[Mapping[str, tuple[Any, ...]]] = REFUSED
    IGNORED: ClassVar[frozenset[str]] = WITHOUT_EFFECT

    model: str
    n: Choices = 1
    temperature: Annotated[float, Shown(minimum=0, maximum=2)] | None = None
    top_p: Annotated[float, Shown(exclusiveMinimum=0, maximum=1)] | None = None
    top_k: Annotated[Int64, Shown(minimum=-1)] | None = None
    min_p: Annotated[float, Shown(minimum=0, maximum=1)] | None = None
    seed: Int64 | None = None
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, Shown(exclusiveMinimum=0)] = 1.0
    logit_bias: Annotated[dict[str, Bias], Field(max_length=MAX_BIASES)] | None = None
    allowed_token_ids: Annotated[TokenIds, Shown(minItems=1)] | None = None
    bad_words: Annotated[list[Stop], Field(max_length=MAX_BAD_WORDS, fail_fast=True)] | None = None
    max_tokens: Annotated[Int64, Shown(minimum=1)] | None = None
    min_tokens: Annotated[Int64, Shown(minimum=0)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS, fail_fast=True)] | None = None
    stop_token_ids: Annotated[TokenIds, Field(max_length=MAX_STOP_TOKEN_IDS)] | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool | None = None
    ignore_eos: bool = False
    prompt_logprobs: Logprobs | None = None
    truncate_prompt_tokens: KeptTokens | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: Any = None
    guided_regex: str | None = None
    guided_choice: list[Any] | None = None
    guided_grammar: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: Int64 | None = None
    service_tier: Literal["auto", "default", "priority", "flex"] | None = None
    cache_salt: Annotated[str, Field(max_length=256)] | None = None
    request_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,128}$")] | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None

    @model_validator(mode="after")
    def fits_streaming(self) -> SamplingFields:
        if self.stream_options is not None and not self.stream:
            raise conflict("stream_options", "is only allowed when stream is true")
        if self.prompt_logprobs is not None and self.stream:
            raise conflict("prompt_logprobs", "is only allowed when stream is false")
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
    def num_generations(self) -> int:
        """Answers to compute for each prompt, of which `n` are given."""
        return self.n

    @property
    def output_logprobs(self) -> int | None:
        """How many alternatives to show for each token of the answer; None: not even its own log probability."""
        return None

    @property
    def engine_logprobs(self) -> int | None:
        """What of this the engine is asked for."""
        return self.output_logprobs

    @property
    def engine_prompt_logprobs(self) -> int | None:
        return self.prompt_logprobs

    @property
    def wants_no_answer(self) -> bool:
        return False

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionRequest(SamplingFields):
    """POST /v1/completions. `prompt` is a text, a list of texts, a list of token ids, or a list of such lists. Whether
    the ids are the model's is checked with the model at hand."""

    prompt: Prompt
    max_tokens: Annotated[Int64, Shown(minimum=0)] | None = None
    add_special_tokens: bool = True
    echo: bool = False
    best_of: Choices | None = None
    logprobs: Logprobs | None = None

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

    @model_validator(mode="after")
    def best_of_is_a_choice(self) -> CompletionRequest:
        if self.best_of is not None and self.best_of < self.n:
            raise conflict("best_of", f"is {self.best_of}, but must be at least n ({self.n})")
        if self.num_generations > self.n and self.stream:
            raise conflict("best_of", "is only allowed when stream is false, unless it equals n")
        if self.num_generations * len(self.prompts) > MAX_CHOICES:
            raise conflict("n", f"or best_of, times the number of prompts, may be at most {MAX_CHOICES}")
        return self

    @property
    def num_generations(self) -> int:
        return self.n if self.best_of is None else self.best_of

    @property
    def output_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def engine_logprobs(self) -> int | None:
        """To choose the best of several, each must be scored."""
        return 0 if self.logprobs is None and self.num_generations > self.n else self.logprobs

    @property
    def engine_prompt_logprobs(self) -> int | None:
        """An echo is shown with as many alternatives as the answer."""
        wanted = [self.prompt_logprobs, self.logprobs if self.echo else None]
        return max((count for count in wanted if count is not None), default=None)

    @property
    def wants_no_answer(self) -> bool:
        return self.echo and self.max_tokens == 0

    @property
    def prompts(self) -> list[str | list[Any]]:
        if isinstance(self.prompt, str) or type(self.prompt[0]) is int:
            return [self.prompt]
        return list(self.prompt)


def _fault(kind: LiteralString, name: str, what: LiteralString) -> PydanticCustomError:
    return PydanticCustomError(kind, what, {"name": sendable(name)})


def conflict(name: str, what: str) -> PydanticCustomError:
    """The fault of the field `name`, beside the others."""
    return PydanticCustomError("conflict", "{what}", {"name": name, "what": what})


def _is_one_of(value: Any, neutral: tuple[Any, ...]) -> bool:
    return any(value == one and type(value) is type(one) for one in neutral)
