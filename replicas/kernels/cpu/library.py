"""Compiles the kernels for the processor at hand, once, and loads them.

The sources use nothing but the C++ language and OpenMP, so that compiling takes seconds and needs neither torch's
headers nor a build tool. The result lies in a cache folder under a name that tells sources, compiler and processor
apart. Threads are those of torch: there is one OpenMP runtime in a process.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

_FOLDER = Path(__file__).parent
_FLAGS = ("-std=c++17", "-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fopenmp", "-fPIC", "-shared")
_COMPILERS = ("g++", "c++", "clang++")
_COMPILE_SECONDS = 300


class KernelsUnavailableError(ValueError):
    """The compiled kernels cannot be had here; the message says why."""


@functools.cache
def load_library() -> ctypes.CDLL:
    """The compiled kernels. Raises KernelsUnavailableError where there is no compiler, or it fails."""
    compiler = _compiler()
    sources = sorted(_FOLDER.glob("*.cpp"))
    path = _cache_folder() / f"{_identity(compiler)}.so"
    if not path.exists():
        _compile(compiler, sources, path)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise KernelsUnavailableError(f"the compiled CPU kernels cannot be loaded: {error}") from error


def is_loaded() -> bool:
    """Whether somebody here has loaded the kernels, and so wants them."""
    return load_library.cache_info().currsize > 0


def _compiler() -> str:
    """`$CXX`, or the first compiler there is."""
    for name in (os.environ.get("CXX"), *_COMPILERS):
        if name and (found := shutil.which(name)):
            return found
    raise KernelsUnavailableError("the compiled CPU kernels need a C++ compiler, such as g++, and there is none")


def _identity(compiler: str) -> str:
    version = subprocess.run([compiler, "--version"], capture_output=True, check=False).stdout
    digest = hashlib.sha256(version + " ".join(_FLAGS).encode() + _processor().encode())
    for source in sorted((*_FOLDER.glob("*.cpp"), *_FOLDER.glob("*.h"))):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:32]


def _processor() -> str:
    """What `-march=native` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine() + platform.processor()
    wanted = ("model name", "flags", "CPU part", "Features")
    return "".join(sorted({line for line in lines if line.startswith(wanted)}))


def _cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(root).expanduser() / "mobula" / "kernels"


def _compile(compiler: str, sources: list[Path], path: Path) -> None:
    """Several processes may do this at the same time: each compiles beside the file and then puts it in place."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            built = Path(folder) / path.name
            command = [compiler, *_FLAGS, "-o", str(built), *map(str, sources)]
            subprocess.run(command, capture_output=True, text=True, check=True, timeout=_COMPILE_SECONDS)
            built.replace(path)
    except subprocess.CalledProcessError as error:
        reason = (error.stderr.strip() or f"status {error.returncode}").splitlines()[0]
        raise KernelsUnavailableError(f"{compiler} can't compile the CPU kernels: {reason}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KernelsUnavailableError(f"the CPU kernels can't be compiled: {error}") from error
