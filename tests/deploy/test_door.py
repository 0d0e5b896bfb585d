"""The door is told what the configuration, the file of keys and the environment say, or nothing starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.gateway.auth import hash_key, new_key
from cluster.gateway.limits import KeyLimits
from cluster.gateway.settings import AdmissionSettings, DoorSettings
from deploy.config import MobulaConfig, config_for_model, load_config
from deploy.door import door_settings
from deploy.errors import UserError

MODEL = "models: [{id: small, source: smollm2-135m, slo: {ttft_p99: 2s}, queue_tokens: 5000}]\n"


@pytest.fixture
def config(tmp_path: Path):
    """Writes a configuration with this text after its model, and a file of keys beside it."""

    def write(text: str = "", keys: str | None = None) -> MobulaConfig:
        (tmp_path / "mobula.yaml").write_text(MODEL + text)
        if keys is not None:
            (tmp_path / "keys.txt").write_text(keys)
        return load_config(tmp_path / "mobula.yaml")

    return write


WITH_FILE = "gateway: {auth: {keys_file: keys.txt}}\n"
LIMIT_BOB = "gateway: {limits: {keys: [{name: bob}]}}"
ALICE = new_key("alice")[1]


def test_a_bare_model_is_open_to_everybody() -> None:
    settings = door_settings(config_for_model("smollm2-135m"), {})
    assert settings == DoorSettings(admission={"smollm2-135m": AdmissionSettings()})


def test_what_is_configured_arrives(config) -> None:
    text = """
gateway:
  cors_origins: [https://app.example, http://localhost:3000]
  auth: {keys_file: keys.txt, public_metrics: false}
  limits:
    requests_per_minute: 60
    concurrency: 8
    most_urgent: 0
    keys:
      - {name: alice, requests_per_minute: 600, tokens_per_minute: 1000}
      - {name: bob, most_urgent: -1}
    redis: redis://localhost:6379/0
"""
    settings = door_settings(config(text, f"# ours\n{ALICE.line}\n"), {"MOBULA_API_KEYS": "bob=secret"})
    assert set(settings.keys) == {ALICE, hash_key("bob", "secret")}
    assert not settings.public_metrics
    assert settings.origins == ("https://app.example", "http://localhost:3000")
    assert settings.limits.default == KeyLimits(60, None, 8, 0)
    assert settings.limits.by_name == {"alice": KeyLimits(600, 1000, 8, 0), "bob": KeyLimits(60, None, 8, -1)}
    assert settings.limits.redis_url == "redis://localhost:6379/0"
    assert settings.admission == {"small": AdmissionSettings(5000, 2.0)}


@pytest.mark.parametrize(
    ("text", "keys", "environment", "said"),
    [
        (WITH_FILE, None, "", "keys.txt cannot be read: No such file or directory"),
        (WITH_FILE, "# nobody\n", "", "has no key: `mobula key NAME >> "),
        (WITH_FILE, "alice 123\n", "", "keys.txt is wrong: line 1 must be a name and a SHA-256"),
        (WITH_FILE, f"{ALICE.line}\n{ALICE.line.replace('alice', 'eve')}\n", "", "alice and eve have the same API key"),
        ("", None, "secret", "MOBULA_API_KEYS is wrong: entry 1 must be NAME=KEY"),
        ("", None, "a=k b=k", "a and b have the same API key"),
        (
            "gateway: {limits: {keys: [{name: bob}]}}",
            None,
            "alice=1",
            "has 'bob', but there is no such key; there are: alice",
        ),
        ("gateway: {limits: {keys: [{name: bob}]}}", None, "", "there are: anonymous"),
        ("gateway: {limits: {keys: [{name: a}, {name: a}]}}", None, "a=1", "has 'a' twice"),
    ],
)
def test_what_cannot_be_is_one_sentence(config, text: str, keys: str | None, environment: str, said: str) -> None:
    with pytest.raises(UserError) as error:
        door_settings(config(text, keys), {"MOBULA_API_KEYS": environment})
    assert said in str(error.value)
    assert "secret" not in str(error.value)
