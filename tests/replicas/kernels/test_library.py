"""The compiled kernels: which compiler makes them, where they are kept, and what is said where they cannot be had."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from replicas.kernels.cpu import library
from replicas.kernels.cpu.library import KernelsUnavailableError, load_library

COMPILER = shutil.which("g++") or shutil.which("clang++")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache folder, and a process that has not loaded anything yet."""
    load_library.cache_clear()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    yield tmp_path / "mobula" / "kernels"
    load_library.cache_clear()


def script(folder: Path, text: str) -> str:
    path = folder / "c++-of-a-test"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_without_a_compiler_it_is_said_what_is_missing(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(KernelsUnavailableError, match=r"need a C\+\+ compiler, such as g\+\+"):
        load_library()


def test_a_compiler_that_fails_is_named_with_the_first_line_of_its_complaint(tmp_path, cache, monkeypatch):
    monkeypatch.setenv("CXX", script(tmp_path, 'echo "no such flag" >&2; echo "and more" >&2; exit 3'))
    with pytest.raises(KernelsUnavailableError, match=r"of-a-test can't compile the CPU kernels: no such flag$"):
        load_library()
    assert list(cache.iterdir()) == [], "nothing half-made is left behind"


def test_what_a_broken_compiler_made_is_not_taken_for_a_library(tmp_path, monkeypatch):
    write_output = 'while [ "$1" != -o ]; do shift; done; echo nonsense > "$2"'
    compiler = script(tmp_path, f'[ "$1" = --version ] && exit 0; {write_output}')
    monkeypatch.setenv("CXX", compiler)
    with pytest.raises(KernelsUnavailableError, match="cannot be loaded"):
        load_library()


def test_a_cache_folder_that_cannot_be_written_is_no_crash(tmp_path, monkeypatch):
    (tmp_path / "mobula").write_text("a file where the folder should be")
    monkeypatch.setenv("CXX", script(tmp_path, "exit 0"))
    with pytest.raises(KernelsUnavailableError, match="can't be compiled"):
        load_library()


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_another_compiler_processor_or_source_is_another_library(monkeypatch):
    known = library._identity(COMPILER)
    assert library._identity(COMPILER) == known
    monkeypatch.setattr(library, "_processor", lambda: "another one")
    assert library._identity(COMPILER) != known


def test_a_library_in_the_cache_is_not_compiled_again(tmp_path, cache, monkeypatch):
    count = tmp_path / "count"
    forward = f'exec {COMPILER} "$@"' if COMPILER else "exit 0"
    monkeypatch.setenv("CXX", script(tmp_path, f'[ "$1" = --version ] || echo x >> {count}; {forward}'))
    # A small source stands for the kernels: what is tested is the cache.
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "one.cpp").write_text('extern "C" int mobula_one() { return 1; }\n')
    monkeypatch.setattr(library, "_FOLDER", sources)
    if COMPILER is None:
        pytest.skip("no C++ compiler")
    assert load_library().mobula_one() == 1
    load_library.cache_clear()
    assert load_library().mobula_one() == 1
    assert count.read_text() == "x\n"
    assert [path.suffix for path in cache.iterdir()] == [".so"]


def test_the_wheel_has_all_sources():
    """What setuptools is told to pack is every file that the compiler reads."""
    import tomllib

    root = Path(library.__file__).parents[3]
    packed = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    patterns = packed["replicas.kernels.cpu"]
    folder = Path(library.__file__).parent
    sources = {path for path in folder.iterdir() if path.suffix not in {".py", ""} and os.path.isfile(path)}
    assert sources == {path for pattern in patterns for path in folder.glob(pattern)}
