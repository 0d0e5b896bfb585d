"""A `source` is a catalogue name, a folder, a .gguf file or a hub id; anything else is told in a sentence."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy import catalog
from deploy.catalog import CatalogEntry, HubModel, identify
from deploy.errors import CatalogError


def test_the_default_model_is_the_one_that_was_pinned(smollm2_path: Path) -> None:
    (entry,) = [entry for entry in catalog.entries() if entry.name == catalog.DEFAULT_MODEL]
    assert hashlib.sha256(smollm2_path.read_bytes()).hexdigest() == entry.file.sha256
    assert entry.cached
    assert catalog.resolve("smollm2-135m") == smollm2_path


def test_the_cache_folder_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOBULA_CACHE", str(tmp_path))
    assert catalog.cache_folder() == tmp_path
    assert not catalog.entries()[0].cached
    monkeypatch.delenv("MOBULA_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert catalog.cache_folder() == tmp_path / ".cache/mobula/models"


def test_what_a_source_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "folder").mkdir()
    (tmp_path / "model.gguf").touch()
    (tmp_path / "smollm2-135m").mkdir()

    assert isinstance(identify("smollm2-135m", tmp_path), CatalogEntry)
    assert identify("./smollm2-135m", tmp_path) == tmp_path / "smollm2-135m"
    assert identify("folder", tmp_path) == tmp_path / "folder"
    assert identify("~/folder") == tmp_path / "folder"
    assert identify("model.gguf", tmp_path) == tmp_path / "model.gguf"
    assert identify(str(tmp_path / "model.gguf")) == tmp_path / "model.gguf"
    assert identify("Qwen/Qwen3-0.6B", tmp_path) == HubModel("Qwen/Qwen3-0.6B")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("smollm2", "did you mean smollm2-135m?"),
        ("SmolLM2-135M", "did you mean smollm2-135m?"),
        ("gpt", "the catalogue has smollm2-135m"),
        ("", "no catalogue name"),
        ("absent.gguf", "there is no file or folder {base}/absent.gguf"),
        ("./absent", "there is no file or folder {base}/absent"),
        ("folder/absent", "there is no file or folder {base}/folder/absent"),
        ("a/b/c", "there is no file or folder {base}/a/b/c"),
        ("/absent", "there is no file or folder /absent"),
        ("notes.txt", "notes.txt is neither a .gguf file nor a folder"),
        ("x" * 5000, "cannot be opened: File name too long"),
    ],
)
def test_what_is_no_source(tmp_path: Path, source: str, said: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "notes.txt").touch()
    with pytest.raises(CatalogError) as error:
        identify(source, tmp_path)
    assert said.format(base=tmp_path) in str(error.value)


def test_a_name_that_the_catalogue_lacks_is_not_fetched() -> None:
    with pytest.raises(CatalogError, match=r"did you mean smollm2-135m\?"):
        catalog.fetch("smollm2-136m")


def test_a_hub_that_cannot_be_reached(tmp_path: Path) -> None:
    code = (
        "from deploy import catalog, errors\ntry: catalog.resolve('owner/name')\nexcept errors.UserError as e: print(e)"
    )
    environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path), "NO_PROXY": "127.0.0.1"}
    message = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True, timeout=60)
    assert "owner/name cannot be fetched: the model hub cannot be reached from this machine" in message
    assert len(message.splitlines()) == 1
