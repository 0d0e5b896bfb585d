"""What is wrong with a model's files."""

from __future__ import annotations

from pathlib import Path

LFS_POINTER = b"version https://git-lfs.github.com/spec/"


class CheckpointError(ValueError):
    """The message names the file and, where there is one, the tensor."""


def require_file(path: Path) -> None:
    """Refuse a file that is absent, or a Git LFS pointer in place of one."""
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file")
    with path.open("rb") as file:
        if file.read(len(LFS_POINTER)) == LFS_POINTER:
            raise CheckpointError(f"{path}: a Git LFS pointer, not the file itself; fetch it with `git lfs pull`")
