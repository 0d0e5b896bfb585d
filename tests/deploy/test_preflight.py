"""What would make a start fail is found before the start."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from deploy.config import MobulaConfig, config_for_model
from deploy.errors import UserError
from deploy.preflight import check_address, check_models, fetch_models


def test_a_good_model_is_opened(smollm2_path: Path) -> None:
    config = config_for_model("smollm2-135m")
    (checked,) = check_models(config)
    assert checked.path == smollm2_path
    assert checked.config is not None
    assert checked.config.num_layers == 30
    assert fetch_models(config) == {"smollm2-135m": smollm2_path}


@pytest.mark.parametrize("source", ["smollm2-135m", "owner/name"])
def test_a_check_fetches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    monkeypatch.setenv("MOBULA_CACHE", str(tmp_path / "cache"))
    (checked,) = check_models(config_for_model(source))
    assert (checked.path, checked.config) == (None, None)
    assert not (tmp_path / "cache").exists()


def broken_models(folder: Path, smollm2: bytes) -> list[Path]:
    """Files and folders that claim to be models."""
    contents = {
        "empty.gguf": b"",
        "text.gguf": b"this is not a model",
        "pointer.gguf": b"version https://git-lfs.github.com/spec/v1\noid sha256:0000\nsize 98362432\n",
        "header.gguf": smollm2[:4096],
        "cut.gguf": smollm2[:-1],
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    (folder / "nothing").mkdir()
    (folder / "bad-config").mkdir()
    (folder / "bad-config/config.json").write_text("{")
    return [folder / name for name in (*contents, "nothing", "bad-config")]


def test_a_broken_model_is_told_in_one_sentence_that_names_it(smollm2_path: Path, tmp_path: Path) -> None:
    for path in broken_models(tmp_path, smollm2_path.read_bytes()):
        with pytest.raises(UserError) as error:
            check_models(config_for_model(str(path)))
        assert path.name in str(error.value)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ({"max_model_len": 8193}, "max_model_len is 8193, but the model was made for at most 8192 tokens"),
        ({"kv_cache_memory": "1KiB"}, "kv_cache_memory is 1024 bytes, but one block of 16 tokens takes"),
    ],
)
def test_an_engine_that_does_not_suit_the_model_is_told(smollm2_path: Path, engine: dict[str, Any], said: str) -> None:
    model = {"id": "small", "source": str(smollm2_path), "engine": engine}
    with pytest.raises(UserError, match=f"the model small cannot be served: {said}"):
        check_models(MobulaConfig.model_validate({"models": [model]}))


def test_a_port_in_use() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} on 127.0.0.1 is in use by another program"):
            check_address("127.0.0.1", port)
    check_address("127.0.0.1", port)


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid", "not an address"])
def test_an_address_that_is_not_ours(host: str) -> None:
    with pytest.raises(UserError, match=f"cannot listen on {host} port 8000: "):
        check_address(host, 8000)
