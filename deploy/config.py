"""The configuration file: what may stand in it and what it means. Nothing heavy is imported here, so that a mistake
is told within a second.

Each class is one section of the file; the text below a field is its documentation.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from cluster.ingress import IngressMode
from deploy.catalog import identify
from deploy.config_problems import find_problems
from deploy.errors import UserError
from deploy.units import parse_bytes, parse_duration
from deploy.yaml_file import ConfigError, Problem, YamlFile, format_path, read_yaml
from replicas.config import Dtype, EngineConfig, Kernels, Quantization
from replicas.embedding.config import EmbeddingConfig
from replicas.text.parser_names import ReasoningParserName, ToolParserName

Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(ge=1)]
Seconds = Annotated[float, BeforeValidator(parse_duration), Field(gt=0)]
Delay = Annotated[float, BeforeValidator(parse_duration), Field(ge=0, le=1)]

_DEFAULTS = EngineConfig()
_DEVICE = re.compile(r"cpu|cuda(:\d+)?")
_ORIGIN = re.compile(r"\*|https?://[\w.-]+(:\d+)?|https?://\[[0-9a-fA-F:]+\](:\d+)?")
_REDIS = re.compile(r"rediss?://[^/\s]")
_ID = re.compile(r"[\w.:/@+-]{1,128}")


class Section(BaseModel):
    """What all sections share: unknown keys and values of another type are refused, never bent into shape."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)


class ParallelSection(Section):
    """Over how many devices one replica splits its model; see docs/parallel.md for when that pays."""

    tensor: int = Field(default=1, ge=1)
    """Ranks that share each layer, all on one node."""
    pipeline: int = Field(default=1, ge=1)
    """Stages, each with a part of the layers, on one node or several."""
    strategy: Literal["PACK", "STRICT_PACK", "SPREAD", "STRICT_SPREAD"] = "PACK"
    """How Ray places the stages on nodes."""


class ReplicasSection(Section):
    """How many copies of the model run."""

    min: int = Field(default=1, ge=1)
    """Replicas to start with, and never fewer."""
    max: int | None = None
    """Replicas at most; left out, as many as `min`."""

    @field_validator("max")
    @classmethod
    def _no_autoscaling(cls, most: int | None, info: ValidationInfo) -> int | None:
        least = info.data.get("min")
        if most is not None and least is not None and most != least:
            raise ValueError(f"must be equal to min ({least}): in this version the number of replicas is fixed")
        return most


class EngineSection(Section):
    """How the engine of one replica runs. Sizes in tokens unless a field says otherwise."""

    dtype: Dtype = _DEFAULTS.dtype
    """Type of weights and activations; `auto` takes the checkpoint's, as far as the device is good at it."""
    quantization: Quantization = _DEFAULTS.quantization
    """Weights in 8 or 4 bits on CPUs: int8, int4 or none. `auto` keeps what a GGUF file holds, unless dtype asks for
    something else."""
    kernels: Kernels = _DEFAULTS.kernels
    """Who computes on CPUs: kernels that are compiled at the first start, or torch; `auto` compiles if it can."""
    record_decodes: bool = _DEFAULTS.record_decodes
    """Whether steps of a few decodes repeat the kernel calls of an earlier step instead of making them anew."""
    block_size: int = Field(default=_DEFAULTS.block_size, ge=1)
    """Tokens in one block of the KV cache."""
    max_batched_tokens: int = Field(default=_DEFAULTS.max_batched_tokens, ge=1)
    """Tokens that one step computes at most, over all requests."""
    max_running: int = Field(default=_DEFAULTS.max_running, ge=1)
    """Requests that are computed at the same time at most."""
    max_model_len: int = Field(default=_DEFAULTS.max_model_len, ge=0)
    """Longest prompt and answer together; 0 takes the model's own limit."""
    kv_cache_memory: Bytes = _DEFAULTS.kv_cache_memory
    """Memory of the KV cache, such as 2GiB."""
    prefix_caching: bool = _DEFAULTS.prefix_caching
    """Whether a prompt reuses the blocks that an earlier one with the same beginning computed."""
    policy: Literal["fcfs", "priority", "deadline", "shortest"] = _DEFAULTS.policy
    """Who is computed first: first come first served, highest priority, nearest deadline, or short prompts ahead of
    long ones (by when each would be done if it were alone)."""
    device: str = _DEFAULTS.device
    """Where the model runs: cpu, cuda or cuda:N."""

    @field_validator("device")
    @classmethod
    def _known_device(cls, device: str) -> str:
        if not _DEVICE.fullmatch(device):
            raise ValueError("must be cpu, cuda or cuda:N")
        return device

    threads: int = Field(default=_DEFAULTS.threads, ge=0)
    """CPU threads that compute; 0 takes every core. Several replicas on one machine share its cores best this way."""

    @model_validator(mode="after")
    def _engine_takes_it(self) -> Self:
        EngineConfig(**self.model_dump())
        return self


class SloSection(Section):
    """Service level objectives: what scheduling aims at."""

    ttft_p99: Seconds | None = None
    """Time to first token that 99 of 100 requests stay under, such as 500ms."""
    itl_p99: Seconds | None = None
    """Time between tokens that 99 of 100 stay under, such as 50ms."""


class EmbeddingSection(Section):
    """How a model makes vectors, and which texts are computed together."""

    pooling: Literal["auto", "mean", "cls", "last"] = "auto"
    """What becomes of a text's tokens: their mean, or the first or the last of them; `auto` takes what the model's
    files say, and else the mean for encoders and the last token for decoders."""
    dimensions: list[int] = []
    """Lengths to which the vectors may be cut, for a model that was trained for that; left out, what its files say."""
    max_batch_size: int = Field(default=32, ge=1, le=4096)
    """Texts that are computed together at most."""
    batch_wait: Delay = 0.005
    """How long a batch waits to become full, such as 5ms; 0ms does not wait."""


class ModelSection(Section):
    """One model that is served."""

    id: str
    """The name that clients use."""
    source: str = Field(min_length=1)
    """A catalogue name, a folder, a .gguf file, or a hub id; relative paths start at the configuration file."""
    task: Literal["auto", "generate", "embed"] = "auto"
    """Whether it makes text or vectors; `auto` makes vectors with encoders, which can do nothing else."""
    embedding: EmbeddingSection = EmbeddingSection()
    parallel: ParallelSection = ParallelSection()
    replicas: ReplicasSection = ReplicasSection()
    engine: EngineSection = EngineSection()
    slo: SloSection = SloSection()
    queue_tokens: int | None = Field(default=None, ge=1)
    """Tokens that may wait in a gateway for room at a replica; left out, as many as the replicas' KV caches hold."""
    tool_parser: ToolParserName = "auto"
    """How the model writes tool calls; `auto` sees it from the chat template, `none` refuses tools."""
    reasoning_parser: ReasoningParserName = "auto"
    """Which marks stand around the model's reasoning; `auto` sees it from the chat template."""
    chat_template_override: bool = False
    """Whether requests may bring a chat template of their own: code that the gateway runs, so for trusted callers."""

    @field_validator("id")
    @classmethod
    def _usable_id(cls, name: str) -> str:
        if not _ID.fullmatch(name):
            raise ValueError("must be 1 to 128 letters, digits or any of . : / @ + _ -")
        return name

    @field_validator("source")
    @classmethod
    def _findable_source(cls, source: str, info: ValidationInfo) -> str:
        found = identify(source, base=info.context or Path())
        return str(found) if isinstance(found, Path) else source


class AuthSection(Section):
    """Who may come in. Keys may also stand in the environment, as MOBULA_API_KEYS="NAME=KEY ..."; without any key the
    gateway is open to everybody."""

    keys_file: str | None = Field(default=None, min_length=1)
    """A file with a name and the SHA-256 of a key on each line, as `mobula key NAME` prints; relative paths start at
    the configuration file."""
    public_metrics: bool = True
    """Whether /metrics is open without a key, as /health and /ready are."""

    @field_validator("keys_file")
    @classmethod
    def _beside_the_configuration(cls, path: str | None, info: ValidationInfo) -> str | None:
        return str((info.context or Path()) / path) if path is not None else None


class KeyLimitSection(Section):
    """What one key may use, in place of what all may; what is left out is as for all."""

    name: str
    """The key's name."""
    requests_per_minute: int | None = Field(default=None, ge=1)
    """Requests that it may begin in any minute."""
    tokens_per_minute: int | None = Field(default=None, ge=1)
    """Tokens of prompts and answers that it may use in any minute."""
    concurrency: int | None = Field(default=None, ge=1)
    """Requests that it may have under way at the same time."""
    most_urgent: int | None = None
    """The lowest priority number that counts when it asks for one."""


class LimitsSection(Section):
    """What each key may use; nothing is limited that is left out."""

    requests_per_minute: int | None = Field(default=None, ge=1)
    """Requests that a key may begin in any minute."""
    tokens_per_minute: int | None = Field(default=None, ge=1)
    """Tokens of prompts and answers that a key may use in any minute."""
    concurrency: int | None = Field(default=None, ge=1)
    """Requests that a key may have under way at the same time."""
    most_urgent: int | None = None
    """The lowest priority number that counts when a key asks for one; lower ones would go before all others."""
    keys: list[KeyLimitSection] = []
    """Keys with limits of their own."""
    redis: str | None = None
    """Address of a Redis where all gateways count together, such as redis://host:6379/0; without it each counts for
    itself."""

    @field_validator("redis")
    @classmethod
    def _redis_address(cls, address: str | None) -> str | None:
        if address is not None and not _REDIS.match(address):
            raise ValueError("must be an address such as redis://host:6379/0 or rediss://host:6379/0")
        return address


class GatewaySection(Section):
    """The HTTP side."""

    replicas: int = Field(default=1, ge=1)
    """Gateway processes."""
    host: str = Field(default="127.0.0.1", min_length=1)
    """Address to listen on; 0.0.0.0 for all of the machine's."""
    port: int = Field(default=8000, ge=1, le=65535)
    """TCP port to listen on."""
    ingress: IngressMode = "gateway"
    """The way in: each gateway's own socket, or Ray Serve's haproxy, direct ingress or proxy."""
    share_events: bool = True
    """Whether tokens that wait together share one event of a stream."""
    max_body: Bytes = 4 * 1024**2
    """Largest body of a request, such as 4MiB."""
    cors_origins: list[str] = []
    """Origins whose pages may call this server from a browser, such as https://app.example; "*" for all."""
    auth: AuthSection = AuthSection()
    limits: LimitsSection = LimitsSection()

    @field_validator("cors_origins")
    @classmethod
    def _origins(cls, origins: list[str]) -> list[str]:
        for origin in origins:
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(f"must be a list of origins such as https://app.example, which {origin!r} is not")
        return origins


class MobulaConfig(Section):
    """The whole file."""

    models: list[ModelSection] = Field(min_length=1)
    """The models to serve, each under an id of its own."""
    gateway: GatewaySection = GatewaySection()


def load_config(path: Path) -> MobulaConfig:
    """The configuration in the YAML file `path`. Raises ConfigError with everything that is wrong in it."""
    file = read_yaml(path, os.environ)
    if file.data is None:
        raise ConfigError(path, [Problem((), "the file is empty, but must have the key models")])
    problems = file.problems + _repeated_ids(file)
    config = None
    try:
        config = MobulaConfig.model_validate(file.data, context=path.parent)
    except ValidationError as error:
        told = {problem.path for problem in problems}
        problems += [p for p in find_problems(error, MobulaConfig, file) if p.path not in told]
    if config is None or problems:
        raise ConfigError(path, sorted(problems, key=lambda problem: problem.line or 0))
    return config


def config_for_model(source: str) -> MobulaConfig:
    """What `mobula serve MODEL` runs: one model under its own name, the rest as by default."""
    found = identify(source)
    name = re.sub(r"[^\w.:/@+-]+", "-", found.stem if isinstance(found, Path) else source)
    return MobulaConfig(models=[ModelSection(id=name, source=source)])


def with_precision(config: MobulaConfig, dtype: str | None, quantization: str | None) -> MobulaConfig:
    """The configuration with all its models in another precision. Raises UserError for one that does not exist."""
    changes = {key: value for key, value in (("dtype", dtype), ("quantization", quantization)) if value is not None}
    try:
        EngineConfig(**changes)  # type: ignore[arg-type]
    except ValueError as error:
        raise UserError(f"--{error}") from error
    models = [model.model_copy(update={"engine": model.engine.model_copy(update=changes)}) for model in config.models]
    return config.model_copy(update={"models": models})


def to_engine_config(model: ModelSection) -> EngineConfig:
    """What the engine of each of the model's replicas is started with."""
    return EngineConfig(
        **model.engine.model_dump(),
        itl_objective=model.slo.itl_p99,
        tensor_parallel=model.parallel.tensor,
        pipeline_parallel=model.parallel.pipeline,
    )


def to_embedding_config(model: ModelSection) -> EmbeddingConfig:
    """What an embedding model's replicas are started with."""
    section = model.embedding
    pooling = None if section.pooling == "auto" else section.pooling
    return EmbeddingConfig(to_engine_config(model), pooling, tuple(section.dimensions))


def _repeated_ids(file: YamlFile) -> list[Problem]:
    models: Any = file.data.get("models") if isinstance(file.data, dict) else None
    problems: list[Problem] = []
    first: dict[str, int] = {}
    for index, model in enumerate(models if isinstance(models, list) else []):
        name = model.get("id") if isinstance(model, dict) else None
        path = ("models", index, "id")
        if isinstance(name, str) and name in first:
            text = f"{format_path(path)} is {name!r}, but models[{first[name]}] has that id already"
            problems.append(Problem(path, text, file.line_of(path)))
        elif isinstance(name, str):
            first[name] = index
    return problems
