"""Embedding models in the configuration file, and what is said of them before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from deploy.cli import app
from deploy.config import load_config, to_embedding_config
from deploy.errors import UserError
from deploy.preflight import fetch_models
from deploy.task import makes_vectors
from deploy.yaml_file import ConfigError


def written(folder: Path, source: object, more: str = "") -> Path:
    file = folder / "mobula.yaml"
    file.write_text(f"models:\n  - id: vectors\n    source: {source}\n{more}")
    return file


def test_encoders_make_vectors_and_decoders_text_unless_told_otherwise(
    tmp_path: Path, minilm_path: Path, smollm2_path: Path
) -> None:
    def makes(path: Path, more: str = "") -> bool:
        return makes_vectors(load_config(written(tmp_path, path, more)).models[0], path)

    assert makes(minilm_path)
    assert not makes(smollm2_path)
    assert makes(smollm2_path, "    task: embed\n")
    with pytest.raises(UserError, match="vectors is an encoder, which makes no text"):
        makes(minilm_path, "    task: generate\n")


def test_the_settings_reach_the_replica(tmp_path: Path, smollm2_path: Path) -> None:
    more = "    task: embed\n    embedding: {pooling: mean, dimensions: [64], max_batch_size: 8, batch_wait: 2ms}\n"
    model = load_config(written(tmp_path, smollm2_path, more)).models[0]
    config = to_embedding_config(model)
    assert (config.pooling, config.dimensions) == ("mean", (64,))
    assert (model.embedding.max_batch_size, model.embedding.batch_wait) == (8, 0.002)
    by_default = to_embedding_config(load_config(written(tmp_path, smollm2_path)).models[0])
    assert (by_default.pooling, by_default.dimensions) == (None, ())


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("max_batch_size: 0", "max_batch_size"),
        ("batch_wait: 5", "must be a duration with its unit"),
        ("batch_wait: 2s", "batch_wait"),
        ("pooling: max", "pooling"),
        ("window: 5ms", "window"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, smollm2_path: Path, setting: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config(written(tmp_path, smollm2_path, f"    embedding: {{{setting}}}\n"))


def test_check_opens_the_model(tmp_path: Path, minilm_path: Path) -> None:
    result = CliRunner().invoke(app, ["check", str(written(tmp_path, minilm_path))])
    assert "vectors: opens, vectors of 384, texts of 256 tokens at most" in result.output


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("    parallel: {tensor: 2}\n", "run on one rank"),
        ("    engine: {quantization: int8}\n", "this model is an encoder"),
        ("    engine: {max_model_len: 600}\n", "at most 512 tokens"),
        ("    embedding: {dimensions: [400]}\n", "vectors have 384 elements"),
    ],
)
def test_what_cannot_be_served_is_told_before_anything_starts(
    tmp_path: Path, minilm_path: Path, more: str, said: str
) -> None:
    config = load_config(written(tmp_path, minilm_path, more))
    with pytest.raises(UserError, match=said):
        fetch_models(config, quiet=True)
