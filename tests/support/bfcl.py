"""Questions of the Berkeley Function Calling Leaderboard as chat requests, with a reference answer to each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SAMPLE = Path(__file__).parent / "data" / "bfcl_v4_sample.jsonl"
SPLITS = ("simple_python", "multiple", "parallel", "parallel_multiple")

_TYPES = {"dict": "object", "float": "number", "tuple": "array"}  # Python's names, as the data has them


@dataclass(frozen=True)
class Question:
    id: str
    messages: list[dict[str, str]]
    tools: list[dict[str, Any]]
    calls: list[tuple[str, dict[str, Any]]]


def sample() -> list[Question]:
    return [_question(json.loads(line)) for line in SAMPLE.read_text("utf-8").splitlines()]


def everything(folder: Path) -> Iterator[Question]:
    """All questions of the splits in a folder of the leaderboard's data."""
    for split in SPLITS:
        answers = {answer["id"]: answer for answer in _lines(folder / "possible_answer" / f"BFCL_v4_{split}.json")}
        for question in _lines(folder / f"BFCL_v4_{split}.json"):
            yield _question(question | answers[question["id"]])


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def _question(entry: dict[str, Any]) -> Question:
    (messages,) = entry["question"]
    tools = [
        {"type": "function", "function": function | {"parameters": _schema(function["parameters"])}}
        for function in entry["function"]
    ]
    calls = [(name, _arguments(given)) for call in entry["ground_truth"] for name, given in call.items()]
    return Question(entry["id"], messages, tools, calls)


def _schema(value: Any) -> Any:
    if isinstance(value, list):
        return [_schema(item) for item in value]
    if not isinstance(value, dict):
        return value
    schema = {key: _schema(item) for key, item in value.items()}
    kind = schema.get("type")
    if kind == "any":
        del schema["type"]
    elif isinstance(kind, str):
        schema["type"] = _TYPES.get(kind, kind)
    return schema


def _arguments(given: dict[str, list[Any]]) -> dict[str, Any]:
    """The first possible value of each; an empty text among them says that the argument may be left out."""
    chosen = ((name, [value for value in values if value != ""]) for name, values in given.items())
    return {name: _value(values[0]) for name, values in chosen if values}


def _value(value: Any) -> Any:
    """In nested objects each field has a list of possible values, too."""
    if isinstance(value, dict):
        return _arguments({name: item if isinstance(item, list) else [item] for name, item in value.items()})
    if isinstance(value, list):
        return [_value(item) for item in value]
    return value
