"""What a gateway is told at its start: who may come in, from where, and how much at once; how its models speak."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cluster.gateway.auth import ApiKey
from cluster.gateway.limits import LimitSettings
from replicas.text.parser_names import ReasoningParserName, ToolParserName


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """One model's queue: at most `queue_tokens` wait (None: as many as the replicas' KV caches hold), and a first token
    is due within `ttft_seconds` (None: whenever it comes)."""

    queue_tokens: int | None = None
    ttft_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class TextSettings:
    """How one model's answers are read, and whether requests may bring a chat template of their own, which is code that
    runs in the gateway."""

    tool_parser: ToolParserName = "auto"
    reasoning_parser: ReasoningParserName = "auto"
    takes_templates: bool = False


@dataclass(frozen=True, slots=True)
class DoorSettings:
    """Without `keys` the gateway is open to everybody. `origins` are those whose pages may call it from a browser;
    `admission` is by model id."""

    keys: tuple[ApiKey, ...] = ()
    public_metrics: bool = True
    origins: tuple[str, ...] = ()
    limits: LimitSettings = field(default_factory=LimitSettings)
    admission: Mapping[str, AdmissionSettings] = field(default_factory=dict)
