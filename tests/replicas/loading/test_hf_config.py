"""A config.json means to us what it means to transformers, keys that are left out included."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, PreTrainedConfig

from replicas.config import ModelConfig, RopeScaling
from replicas.loading.errors import CheckpointError
from replicas.loading.hf_config import read_hf_config
from tests.support.checkpoints import MAX_POSITIONS, TINY_CONFIGS, scaled, write_config

ESSENTIAL = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
OPTIONAL = (
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_parameters",
    "tie_word_embeddings",
    "attention_bias",
    "mlp_bias",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "layer_types",
    "bos_token_id",
    "eos_token_id",
    "hidden_act",
)


def seen_by_transformers(folder: Path) -> dict[str, Any]:
    config = AutoConfig.from_pretrained(folder)
    family = config.model_type
    biased = getattr(config, "attention_bias", False)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return {
        "vocab_size": config.vocab_size,
        "num_kv_heads": config.num_key_value_heads,
        "head_dim": head_dim,
        "max_positions": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_parameters["rope_theta"],
        "tie_word_embeddings": config.tie_word_embeddings,
        "qkv_bias": biased or family == "qwen2",
        "o_bias": biased,
        "mlp_bias": getattr(config, "mlp_bias", False),
        "qk_norm": family == "qwen3",
        "sliding_windows": windows(config),
        "bos_token_id": config.bos_token_id,
        "eos_token_ids": () if config.eos_token_id is None else (config.eos_token_id,),
    }


def windows(config: PreTrainedConfig) -> tuple[int, ...]:
    if config.model_type == "llama":
        return (0,) * config.num_hidden_layers
    if config.model_type == "mistral":
        return (config.sliding_window or 0,) * config.num_hidden_layers
    return tuple(config.sliding_window if kind == "sliding_attention" else 0 for kind in config.layer_types)


def seen_by_us(folder: Path) -> dict[str, Any]:
    config = read_hf_config(folder)
    return {name: getattr(config, name) for name in seen_by_transformers(folder)}


@pytest.mark.parametrize("name", TINY_CONFIGS)
def test_reads_what_transformers_reads(name: str, tmp_path: Path) -> None:
    write_config(tmp_path, TINY_CONFIGS[name])
    assert seen_by_us(tmp_path) == seen_by_transformers(tmp_path)


@pytest.mark.parametrize("name", ["llama-biased", "mistral-window", "qwen2-mixed-windows", "qwen3"])
@pytest.mark.parametrize("key", OPTIONAL)
def test_a_key_left_out_means_what_it_means_to_transformers(name: str, key: str, tmp_path: Path) -> None:
    write_config(tmp_path, TINY_CONFIGS[name], **{key: None})
    if name == "qwen2-mixed-windows" and key == "use_sliding_window":
        with pytest.raises(CheckpointError, match="sliding_attention needs use_sliding_window"):
            read_hf_config(tmp_path)
        return
    assert seen_by_us(tmp_path) == seen_by_transformers(tmp_path)


def test_null_is_not_the_same_as_left_out(tmp_path: Path) -> None:
    """Mistral without the key has a window of 4096, with null it has none."""
    path = write_config(tmp_path, TINY_CONFIGS["mistral-window"])
    for change, expected in (({}, 4096), ({"sliding_window": None}, 0)):
        values = json.loads(path.read_text())
        values.pop("sliding_window", None)
        path.write_text(json.dumps({**values, **change}))
        assert seen_by_us(tmp_path) == seen_by_transformers(tmp_path)
        assert read_hf_config(tmp_path).sliding_windows == (expected, expected)


@pytest.mark.parametrize("key", ESSENTIAL)
def test_an_essential_key_left_out_is_named(key: str, tmp_path: Path) -> None:
    write_config(tmp_path, TINY_CONFIGS["llama"], **{key: None})
    with pytest.raises(CheckpointError, match=rf"config\.json: {key} is missing"):
        read_hf_config(tmp_path)


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


class TestRopeSpellings:
    def scaling(self, folder: Path, **changes: Any) -> RopeScaling | None:
        write_config(folder, scaled(None), **{"rope_parameters": None, **changes})
        return read_hf_config(folder).rope_scaling

    @pytest.mark.parametrize("type_key", ["rope_type", "type"])
    def test_old_and_new_spellings_are_one(self, type_key: str, tmp_path: Path) -> None:
        scaling = {type_key: "llama3", **LLAMA3}
        old = self.scaling(tmp_path, rope_scaling=scaling, rope_theta=5e5)
        assert old == RopeScaling("llama3", 8.0, 64, low_freq_factor=1.0, high_freq_factor=4.0)
        assert read_hf_config(tmp_path).rope_theta == 5e5
        assert self.scaling(tmp_path, rope_parameters={**scaling, "rope_theta": 5e5}) == old
        assert read_hf_config(tmp_path).rope_theta == 5e5

    def test_no_scaling_has_many_spellings(self, tmp_path: Path) -> None:
        for changes in ({}, {"rope_theta": 1e6}, {"rope_scaling": {"type": "default"}}, {"rope_parameters": {}}):
            assert self.scaling(tmp_path, **changes) is None

    def test_the_original_length_falls_back_to_the_model_s(self, tmp_path: Path) -> None:
        without = {key: value for key, value in LLAMA3.items() if key != "original_max_position_embeddings"}
        scaling = self.scaling(tmp_path, rope_scaling={"rope_type": "llama3", **without})
        assert scaling is not None
        assert scaling.original_max_positions == MAX_POSITIONS

    @pytest.mark.parametrize("kind", ["longrope", "su", "mrope", 7])
    def test_an_unknown_kind_is_refused_with_the_known_ones(self, kind: object, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match=rf"rope_type is {kind!r}, but must be one of default, .*yarn"):
            self.scaling(tmp_path, rope_scaling={"rope_type": kind, "factor": 2.0})

    @pytest.mark.parametrize("kind", ["linear", "dynamic", "llama3"])
    def test_a_missing_factor_is_named(self, kind: str, tmp_path: Path) -> None:
        without = {key: value for key, value in LLAMA3.items() if key != "factor"}
        with pytest.raises(CheckpointError, match=r"rope_scaling\.factor is missing"):
            self.scaling(tmp_path, rope_scaling={"rope_type": kind, **without})

    def test_rope_that_differs_between_layers_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="differs between layers"):
            self.scaling(tmp_path, rope_parameters={"full_attention": {"rope_type": "default"}})

    @pytest.mark.parametrize(
        ("scaling", "length"),
        [
            ({"rope_type": "linear", "factor": 4.0}, 4 * MAX_POSITIONS),
            ({"rope_type": "dynamic", "factor": 2.0}, 2 * MAX_POSITIONS),
            ({"rope_type": "yarn", "factor": 4.0}, 4 * MAX_POSITIONS),
            ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}, MAX_POSITIONS),
            ({"rope_type": "llama3", **LLAMA3}, MAX_POSITIONS),
        ],
    )
    def test_the_stretched_length_is_served(self, scaling: dict[str, Any], length: int, tmp_path: Path) -> None:
        self.scaling(tmp_path, rope_scaling=scaling)
        assert read_hf_config(tmp_path).max_positions == length


class TestEosTokens:
    def read(self, folder: Path, ours: object, generation: object) -> ModelConfig:
        write_config(folder, TINY_CONFIGS["llama"], eos_token_id=ours)
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
        return read_hf_config(folder)

    def test_both_files_count(self, tmp_path: Path) -> None:
        assert self.read(tmp_path, 5, [7, 5]).eos_token_ids == (5, 7)
        assert self.read(tmp_path, [5, 6], 7).eos_token_ids == (5, 6, 7)
        assert self.read(tmp_path, 5, None).eos_token_ids == (5,)

    def test_nonsense_is_refused_with_the_file(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match=r"generation_config\.json: eos_token_id is 'x'"):
            self.read(tmp_path, 5, "x")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', but only silu"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config is not supported"),
        ({"text_config": {}}, "text_config is not supported"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"hidden_size": "48"}, "hidden_size is '48', but must be an integer of at least 1"),
        ({"hidden_size": 0}, "hidden_size is 0"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, but must be at most 4096"),
        ({"rms_norm_eps": -1}, "rms_norm_eps is -1, but must be a positive number"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes', but must be true or false"),
        ({"dtype": "float8"}, "dtype is 'float8'"),
        ({"architectures": []}, "architectures is"),
        ({"architectures": None}, "architectures is None"),
    ],
)
def test_what_we_cannot_honour_is_refused_by_name(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_config(tmp_path, TINY_CONFIGS["llama"], **changes)
    with pytest.raises(CheckpointError, match=message) as refusal:
        read_hf_config(tmp_path)
    assert str(tmp_path / "config.json") in str(refusal.value)


@pytest.mark.parametrize("layer_types", [["sliding_attention"], "full", ["full_attention", "chunked_attention"]])
def test_layer_types_must_fit(layer_types: object, tmp_path: Path) -> None:
    write_config(tmp_path, TINY_CONFIGS["qwen2-mixed-windows"], layer_types=layer_types)
    with pytest.raises(CheckpointError, match="layer_types is"):
        read_hf_config(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"version https://git-lfs.github.com/spec/v1\n"])
def test_a_broken_file_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"config\.json: "):
        read_hf_config(tmp_path)
