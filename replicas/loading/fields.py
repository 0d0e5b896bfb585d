"""Typed access to the keys of a model's description, with errors that name file and key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replicas.loading.errors import CheckpointError

_MAX_LAYERS = 4096


@dataclass(frozen=True, slots=True)
class Fields:
    """`prefix` stands before every key in the file and in messages."""

    path: Path
    values: Mapping[str, Any]
    prefix: str = ""

    def get(self, key: str, default: Any = None) -> Any:
        return self.values.get(self.prefix + key, default)

    def integer(self, key: str, default: int | None = None, minimum: int = 1) -> int:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.error(key, f"must be an integer of at least {minimum}")
        return value

    def num_layers(self, key: str) -> int:
        """Bounded, because memory and time go with it before any tensor is looked at."""
        if (value := self.integer(key)) > _MAX_LAYERS:
            raise self.error(key, f"must be at most {_MAX_LAYERS}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise self.error(key, "must be a positive number")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, "must be true or false")
        return value

    def error(self, key: str, problem: str) -> CheckpointError:
        if self.prefix + key not in self.values:
            return CheckpointError(f"{self.path}: {self.prefix}{key} is missing")
        return CheckpointError(f"{self.path}: {self.prefix}{key} is {self.get(key)!r}, but {problem}")
