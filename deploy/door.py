"""From the configuration to what the gateway's door is told: the keys are read here, and only their hashes go on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from cluster.gateway.auth import ANONYMOUS, ApiKey, parse_key_lines, parse_key_pairs
from cluster.gateway.limits import KeyLimits, LimitSettings
from cluster.gateway.settings import AdmissionSettings, DoorSettings
from deploy.config import AuthSection, LimitsSection, MobulaConfig
from deploy.errors import UserError

KEYS_VARIABLE = "MOBULA_API_KEYS"


def door_settings(config: MobulaConfig, environment: Mapping[str, str]) -> DoorSettings:
    """Raises UserError for keys that cannot be read, or limits of a key that there is not."""
    gateway = config.gateway
    keys = _read_keys(gateway.auth, environment)
    _check_names(gateway.limits, {key.name for key in keys} or {ANONYMOUS})
    return DoorSettings(
        keys=keys,
        public_metrics=gateway.auth.public_metrics,
        origins=tuple(gateway.cors_origins),
        limits=_limits(gateway.limits),
        admission={model.id: AdmissionSettings(model.queue_tokens, model.slo.ttft_p99) for model in config.models},
    )


def _read_keys(auth: AuthSection, environment: Mapping[str, str]) -> tuple[ApiKey, ...]:
    try:
        keys = parse_key_pairs(environment.get(KEYS_VARIABLE, ""))
    except ValueError as error:
        raise UserError(f"the environment variable {KEYS_VARIABLE} is wrong: {error}") from None
    if auth.keys_file is not None:
        keys += _read_file(Path(auth.keys_file))
    if twice := [digest for digest, count in Counter(key.digest for key in keys).items() if count > 1]:
        names = " and ".join(key.name for key in keys if key.digest == twice[0])
        raise UserError(f"{names} have the same API key, so nobody could tell them apart")
    return tuple(keys)


def _read_file(path: Path) -> list[ApiKey]:
    try:
        keys = parse_key_lines(path.read_text("utf-8"))
    except OSError as error:
        raise UserError(f"the file of API keys {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"the file of API keys {path} is wrong: {error}") from None
    if not keys:
        raise UserError(f"the file of API keys {path} has no key: `mobula key NAME >> {path}` adds one")
    return keys


def _check_names(limits: LimitsSection, known: set[str]) -> None:
    counts = Counter(key.name for key in limits.keys)
    for name, count in counts.items():
        if name not in known:
            raise UserError(
                f"gateway.limits.keys has {name!r}, but there is no such key; there are: {', '.join(sorted(known))}"
            )
        if count > 1:
            raise UserError(f"gateway.limits.keys has {name!r} twice")


def _limits(section: LimitsSection) -> LimitSettings:
    default = KeyLimits(
        section.requests_per_minute, section.tokens_per_minute, section.concurrency, section.most_urgent
    )
    own = {
        key.name: KeyLimits(
            key.requests_per_minute or default.requests_per_minute,
            key.tokens_per_minute or default.tokens_per_minute,
            key.concurrency or default.concurrency,
            default.most_urgent if key.most_urgent is None else key.most_urgent,
        )
        for key in section.keys
    }
    return LimitSettings(default, own, section.redis)
