"""A configuration file means what it says, or is refused with everything that is wrong in it."""

from __future__ import annotations

import copy
import dataclasses
import functools
import operator
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.config import (
    AuthSection,
    EmbeddingSection,
    EngineSection,
    GatewaySection,
    KeyLimitSection,
    LimitsSection,
    MobulaConfig,
    ModelSection,
    ParallelSection,
    ReplicasSection,
    Section,
    SloSection,
    config_for_model,
    load_config,
    to_engine_config,
    with_precision,
)
from deploy.errors import UserError
from deploy.yaml_file import ConfigError
from replicas.config import EngineConfig

VALID: dict[str, Any] = {
    "models": [
        {
            "id": "small",
            "source": "smollm2-135m",
            "parallel": {"tensor": 1, "pipeline": 1, "strategy": "PACK"},
            "replicas": {"min": 2, "max": 2},
            "engine": {
                "dtype": "float32",
                "quantization": "int8",
                "kernels": "torch",
                "record_decodes": False,
                "block_size": 32,
                "max_batched_tokens": 512,
                "max_running": 8,
                "max_model_len": 1024,
                "kv_cache_memory": "512MiB",
                "prefix_caching": False,
                "policy": "priority",
                "device": "cpu",
                "threads": 2,
            },
            "slo": {"ttft_p99": "500ms", "itl_p99": "50ms"},
            "queue_tokens": 100_000,
            "task": "generate",
            "embedding": {"pooling": "mean", "dimensions": [128], "max_batch_size": 16, "batch_wait": "5ms"},
            "tool_parser": "hermes",
            "reasoning_parser": "think",
            "chat_template_override": False,
        }
    ],
    "gateway": {
        "replicas": 1,
        "host": "0.0.0.0",
        "port": 9000,
        "ingress": "gateway",
        "share_events": True,
        "max_body": "1MiB",
        "cors_origins": ["https://app.example"],
        "auth": {"keys_file": "keys.txt", "public_metrics": False},
        "limits": {
            "requests_per_minute": 60,
            "tokens_per_minute": 60_000,
            "concurrency": 8,
            "most_urgent": 0,
            "keys": [
                {
                    "name": "alice",
                    "requests_per_minute": 600,
                    "tokens_per_minute": 600_000,
                    "concurrency": 80,
                    "most_urgent": -5,
                }
            ],
            "redis": "redis://localhost:6379/0",
        },
    },
}
MINIMAL = "models: [{id: small, source: smollm2-135m}]\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "mobula.yaml"


def refusal(file: Path, text: str | bytes) -> str:
    """The message about a file that holds `text`."""
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError) as error:
        load_config(file)
    assert str(file) in str(error.value)
    return str(error.value)


def refusal_of(file: Path, document: Any) -> str:
    return refusal(file, yaml.safe_dump(document))


def test_every_key_is_read(file: Path) -> None:
    file.write_text(yaml.safe_dump(VALID))
    config = load_config(file)
    (model,) = config.models
    assert (model.id, model.source, model.replicas.min) == ("small", "smollm2-135m", 2)
    assert to_engine_config(model) == EngineConfig(
        dtype="float32",
        quantization="int8",
        kernels="torch",
        record_decodes=False,
        block_size=32,
        max_batched_tokens=512,
        max_running=8,
        max_model_len=1024,
        kv_cache_memory=512 * 1024**2,
        prefix_caching=False,
        itl_objective=0.05,
        policy="priority",
        device="cpu",
        threads=2,
    )
    assert (config.gateway.host, config.gateway.port) == ("0.0.0.0", 9000)


def test_options_of_serve_change_every_models_precision(file: Path) -> None:
    file.write_text(yaml.safe_dump(VALID))
    changed = with_precision(load_config(file), "bfloat16", "int8")
    assert [(m.engine.dtype, m.engine.quantization, m.engine.block_size) for m in changed.models] == [
        ("bfloat16", "int8", 32)
    ]
    assert with_precision(load_config(file), None, None) == load_config(file)


def test_an_unknown_precision_is_refused(file: Path) -> None:
    file.write_text(MINIMAL)
    with pytest.raises(UserError, match="--quantization is 'int2', but must be one of auto, int8, int4, none"):
        with_precision(load_config(file), None, "int2")


def test_what_is_left_out_is_as_for_a_bare_model(file: Path) -> None:
    file.write_text(MINIMAL)
    config = load_config(file)
    assert to_engine_config(config.models[0]) == EngineConfig()
    assert config.gateway == config_for_model("smollm2-135m").gateway


def test_the_section_has_a_key_for_each_of_the_engines_settings() -> None:
    settings = {field.name for field in dataclasses.fields(EngineConfig)}
    elsewhere = {"itl_objective", "tensor_parallel", "pipeline_parallel"}  # in slo and parallel
    assert set(EngineSection.model_fields) | elsewhere == settings


def test_a_relative_source_starts_at_the_file(file: Path, tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    file.write_text("models: [{id: own, source: weights}]")
    assert load_config(file).models[0].source == str(tmp_path / "weights")


# --- Keys: every one of the file, misspelt, misplaced, of another type ---


SECTIONS: dict[tuple[str | int, ...], type[Section]] = {
    (): MobulaConfig,
    ("models", 0): ModelSection,
    ("models", 0, "embedding"): EmbeddingSection,
    ("models", 0, "parallel"): ParallelSection,
    ("models", 0, "replicas"): ReplicasSection,
    ("models", 0, "engine"): EngineSection,
    ("models", 0, "slo"): SloSection,
    ("gateway",): GatewaySection,
    ("gateway", "auth"): AuthSection,
    ("gateway", "limits"): LimitsSection,
    ("gateway", "limits", "keys", 0): KeyLimitSection,
}
KEYS = [(path, key) for path, section in SECTIONS.items() for key in section.model_fields]
MISPLACED = [(*where, place) for where in KEYS for place in SECTIONS if where[1] not in SECTIONS[place].model_fields]

WRONG_VALUES: list[Any] = [[1], {"a": 1}, 2.5, True, "many"]
TEXTS, SWITCHES = (
    ("id", "host", "name", "keys_file"),
    ("prefix_caching", "record_decodes", "share_events", "public_metrics", "chat_template_override"),
)
MISTYPED = [
    (*where, value)
    for where in KEYS
    for value in WRONG_VALUES
    if not (where[1] == "dimensions" and isinstance(value, list))
    and not (where[1] in TEXTS and isinstance(value, str))
    and not (where[1] in SWITCHES and isinstance(value, bool))
]


def dotted(path: tuple[str | int, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def changed(path: tuple[str | int, ...], change: Any) -> dict[str, Any]:
    """VALID, with `change` applied to the section at `path`."""
    document = copy.deepcopy(VALID)
    change(functools.reduce(operator.getitem, path, document))
    return document


def test_the_tables_below_cover_the_file() -> None:
    assert set(SECTIONS.values()) == set(Section.__subclasses__())
    for path, section in SECTIONS.items():
        assert set(functools.reduce(operator.getitem, path, VALID)) == set(section.model_fields)


@pytest.mark.parametrize(("path", "key"), KEYS, ids=str)
def test_a_misspelt_key_is_named_with_the_right_one(file: Path, path: tuple[str | int, ...], key: str) -> None:
    typo = f"{key}z"

    message = refusal_of(file, changed(path, lambda section: section.update({typo: section.pop(key)})))

    assert f"{dotted((*path, typo))} is " in message
    assert "allowed here: " + ", ".join(SECTIONS[path].model_fields) in message
    assert f"did you mean {key}" in message


@pytest.mark.parametrize(("path", "key", "place"), MISPLACED, ids=str)
def test_a_key_in_another_section_is_told_where_it_belongs(
    file: Path, path: tuple[str | int, ...], key: str, place: tuple[str | int, ...]
) -> None:
    message = refusal_of(file, changed(place, lambda section: section.update({key: 1})))

    assert f"{dotted((*place, key))} is 1, but there is no such key (it belongs at " in message
    assert dotted((*path, key)).replace("[0]", "[]") in message


@pytest.mark.parametrize(("path", "key", "value"), MISTYPED, ids=str)
def test_a_value_of_another_type_is_refused(file: Path, path: tuple[str | int, ...], key: str, value: Any) -> None:
    message = refusal_of(file, changed(path, lambda section: section.update({key: value})))

    assert dotted((*path, key)) in message
    assert "must be" in message or "allowed here" in message or "catalogue name" in message


@pytest.mark.parametrize(
    ("path", "key", "value", "said"),
    [
        (
            ("models", 0, "engine"),
            "dtype",
            "fp8",
            "is 'fp8', but must be one of 'auto', 'float32', 'bfloat16' or 'float16'",
        ),
        (("models", 0, "engine"), "block_size", "16", "is '16', but must be a whole number"),
        (("models", 0, "engine"), "block_size", 0, "is 0, but must be at least 1"),
        (("models", 0, "engine"), "kv_cache_memory", "2 gigs", "is '2 gigs', but must be a size such as 2GiB"),
        (("models", 0, "engine"), "kv_cache_memory", 0, "is 0, but must be at least 1"),
        (
            ("models", 0, "engine"),
            "max_running",
            1024,
            "max_running is 1024, but may not exceed max_batched_tokens (512)",
        ),
        (("models", 0, "engine"), "device", "gpu", "is 'gpu', but must be cpu, cuda or cuda:N"),
        (("models", 0, "slo"), "ttft_p99", 500, "is 500, but must be a duration with its unit, such as 500ms"),
        (("models", 0, "slo"), "itl_p99", "0ms", "must be more than 0"),
        (("models", 0, "parallel"), "tensor", 0, "is 0, but must be at least 1"),
        (("models", 0, "replicas"), "max", 4, "is 4, but must be equal to min (2)"),
        (("models", 0), "id", "a b", "is 'a b', but must be 1 to 128 letters"),
        (("models", 0), "id", False, "is false, but must be text"),
        (("models", 0), "source", "smolm2-135m", "did you mean smollm2-135m?"),
        (("models", 0), "source", "./nothing.gguf", "nothing.gguf"),
        (("models", 0), "source", "/no/such/folder", "there is no file or folder /no/such/folder"),
        (("models", 0), "source", "", "must be text that is not empty"),
        (("gateway",), "port", 70000, "is 70000, but must be at most 65535"),
        (("gateway",), "max_body", "big", "is 'big', but must be a size such as 2GiB"),
        (("gateway",), "cors_origins", ["app.example"], "must be a list of origins such as https://app.example"),
        (("gateway",), "cors_origins", ["https://app.example/page"], "must be a list of origins"),
        (("gateway", "limits"), "redis", "localhost:6379", "must be an address such as redis://host:6379/0"),
        (("gateway", "limits"), "concurrency", 0, "is 0, but must be at least 1"),
        (("gateway", "limits", "keys", 0), "tokens_per_minute", "1M", "is '1M', but must be a whole number"),
        (("models", 0), "queue_tokens", 0, "is 0, but must be at least 1"),
        (("gateway",), "host", None, "is empty, but must be text"),
        ((), "models", [], "must be a list with at least one entry"),
        ((), "models", {"id": "a"}, "must be a list"),
        ((), "gateway", None, "must be a section with the keys replicas, host, port"),
    ],
)
def test_a_bad_value_is_told_with_what_is_allowed(
    file: Path, path: tuple[str | int, ...], key: str, value: Any, said: str
) -> None:
    message = refusal_of(file, changed(path, lambda section: section.update({key: value})))
    assert said in message
    assert dotted(path) in message


def test_a_missing_key_is_told_with_what_it_is_for(file: Path) -> None:
    message = refusal(file, "models:\n  - id: small\n")
    assert "line 2: models[0].source is missing: a catalogue name, a folder, a .gguf file, or a hub id" in message


def test_two_models_with_one_id(file: Path) -> None:
    message = refusal(file, "models:\n- {id: a, source: smollm2-135m}\n- {id: a, source: smollm2-135m}\n")
    assert "line 3: models[1].id is 'a', but models[0] has that id already" in message


# --- The file as YAML ---


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        ("# nothing but a comment\n", "empty"),
        ("---\n", "empty"),
        ("just words", "must be a section with the keys models, gateway"),
        ("- a list", "must be a section"),
        ("models:\n\t- id: a\n", "line 2: a tab stands where YAML allows only spaces"),
        ("models:\n  - id:\ta\n\tsource: b\n", "a tab"),
        ("models: [", "cannot be read as YAML"),
        ("a: b: c", "line 1:"),
        (f"{MINIMAL}---\n{MINIMAL}", "but found another document"),
        (f"{MINIMAL}gateway: !!python/name:os.system\n", "line 2:"),
        (f"{MINIMAL}gateway: *nowhere\n", "nowhere"),
        ("models: &a [*a]\n", "models[0]"),
        (f"{MINIMAL}1: 2\n", "the key 1 must be text"),
        (f"{MINIMAL}? [a]\n: 1\n", "line 2:"),
        ("[" * 2000, "nested too deeply"),
        (b"\xff\xfe", "UTF-8"),
        (b"models: \x00", "cannot be read"),
    ],
)
def test_what_is_no_configuration_at_all(file: Path, text: str | bytes, said: str) -> None:
    assert said in refusal(file, text)


def test_a_key_that_is_given_twice_is_told_at_every_depth(file: Path) -> None:
    message = refusal(
        file,
        "gateway: {port: 8000, port: 9000}\nmodels:\n- id: a\n  source: smollm2-135m\n  id: b\n"
        "  engine:\n    block_size: 16\n    block_size: 32\ngateway: {}\n",
    )
    assert "line 1: gateway.port is given twice" in message
    assert "line 5: models[0].id is given twice, first on line 3" in message
    assert "line 8: models[0].engine.block_size is given twice, first on line 7" in message
    assert "line 9: gateway is given twice, first on line 1" in message


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no configuration file .*absent\.yaml"):
        load_config(tmp_path / "absent.yaml")
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        load_config(tmp_path)


def test_all_problems_are_told_at_once_and_ten_shown(file: Path) -> None:
    message = refusal(file, "models:\n" + "".join(f"- {{id: m{i}, source: nowhere}}\n" for i in range(13)))
    assert [f"line {line}:" in message for line in range(2, 15)] == [True] * 10 + [False] * 3
    assert "... and 3 more" in message


def test_a_huge_value_is_not_repeated_in_full(file: Path) -> None:
    assert len(refusal(file, f"models: '{'x' * 100_000}'")) < 500


# --- The environment ---


def test_variables_take_the_place_of_values(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL", "smollm2-135m")
    monkeypatch.setenv("PORT", "9001")
    monkeypatch.setenv("NUMBER", "7")
    file.write_text("models:\n- id: 'n-${NUMBER}'\n  source: ${MODEL}\ngateway:\n  port: ${PORT}\n")
    config = load_config(file)
    assert (config.models[0].id, config.models[0].source, config.gateway.port) == ("n-7", "smollm2-135m", 9001)


@pytest.mark.parametrize("text", ["${UNSET_HERE}", "http-${UNSET_HERE}", "'${UNSET_HERE}'"])
def test_a_variable_that_is_not_set(file: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.delenv("UNSET_HERE", raising=False)
    message = refusal(file, f"models:\n- id: a\n  source: {text}\ngateway:\n  port: {text}\n")
    assert "line 3: models[0].source is " in message
    assert "line 5: gateway.port is " in message
    assert message.count("the environment variable 'UNSET_HERE' is not set") == 2
    assert len(message.splitlines()) == 3  # and nothing else is said about these keys


# --- Without a file ---


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("smollm2-135m", "smollm2-135m"),
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
        ("{tmp}/My model (1).gguf", "My-model-1-"),
    ],
)
def test_a_model_is_served_under_its_own_name(tmp_path: Path, source: str, name: str) -> None:
    (tmp_path / "My model (1).gguf").touch()
    config = config_for_model(source.format(tmp=tmp_path))
    assert [model.id for model in config.models] == [name]


def test_reading_a_configuration_needs_no_heavy_library() -> None:
    code = "import sys, deploy.config; print({'torch', 'ray', 'transformers', 'huggingface_hub'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


def test_problems_keep_their_lines(file: Path) -> None:
    file.write_text("models:\n- id: a\n  source: smollm2-135m\n  engine:\n    dtype: fp8\n")
    with pytest.raises(ConfigError) as error:
        load_config(file)
    assert [(problem.path, problem.line) for problem in error.value.problems] == [(("models", 0, "engine", "dtype"), 5)]
