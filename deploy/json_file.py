"""Results as a JSON file beside what a person reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from deploy.errors import UserError


def write_json(file: Path | None, result: dict[str, Any]) -> None:
    """Does nothing without a file. Raises UserError."""
    if file is None:
        return
    try:
        file.write_text(json.dumps(result, indent=2, default=str) + "\n")
    except OSError as error:
        raise UserError(f"the result cannot be written to {file}: {error.strerror}") from error


def check_folder(folder: Path | None) -> None:
    """Tell before a long measurement that there is no place for its result. Raises UserError."""
    if folder is not None and not folder.is_dir():
        raise UserError(f"the result cannot be written to {folder}: there is no such folder")
