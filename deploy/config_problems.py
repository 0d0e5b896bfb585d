"""Say what pydantic found in a configuration the way a person needs it: line, key path, value, and what is allowed."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ValidationError

from deploy.yaml_file import KeyPath, Problem, YamlFile, format_path

Sections = type[BaseModel]

_ALLOWED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text (in quotes, if it looks like something else)",
    "bool_type": "true or false",
    "list_type": "a list (each entry begins with a dash)",
    "too_short": "a list with at least one entry",
    "string_too_short": "text that is not empty",
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "literal_error": "one of {expected}",
}


def find_problems(error: ValidationError, root: Sections, file: YamlFile) -> list[Problem]:
    """One problem for each of pydantic's errors in `file.data` checked against `root`."""
    problems = []
    for details in error.errors(include_url=False):
        path = details["loc"]
        text = _sentence(details["type"], path, details["input"], details.get("ctx", {}), root) or details["msg"]
        problems.append(Problem(path, text, file.line_of(path)))
    return problems


def _sentence(kind: str, path: KeyPath, value: Any, context: dict[str, Any], root: Sections) -> str | None:
    name = format_path(path) or "the file"
    if kind == "extra_forbidden":
        return _unknown_key(path, value, root)
    if kind == "missing":
        section, field = _section_at(root, path[:-1]), str(path[-1])
        description = (section.model_fields[field].description or "").split(";")[0].rstrip(".")
        return f"{name} is missing: {description[:1].lower()}{description[1:]}"
    if kind == "value_error":
        # From a section's own check the error is a whole sentence, from a field's it is the part after "but".
        return f"{name}: {context['error']}" if isinstance(value, dict) else _but(name, value, str(context["error"]))
    if kind == "model_type":
        return _but(name, value, f"must be a section with the keys {', '.join(_section_at(root, path).model_fields)}")
    if kind == "invalid_key":
        return f"{name}: the key {path[-1]} must be text"
    if kind in _ALLOWED:
        return _but(name, value, "must be " + _ALLOWED[kind].format(**context))
    return None


def _but(name: str, value: Any, allowed: str) -> str:
    # Checks that need other words than "must be ..." bring a sentence without a verb of duty.
    joint = ", but " if allowed.startswith("must") else ": "
    return f"{name} is {_show(value)}{joint}{allowed}"


def _unknown_key(path: KeyPath, value: Any, root: Sections) -> str:
    valid = list(_section_at(root, path[:-1]).model_fields)
    hint = _hint(str(path[-1]), valid, list(_all_keys(root)))
    return f"{format_path(path)} is {_show(value)}, but there is no such key{hint}; allowed here: {', '.join(valid)}"


def _hint(key: str, here: list[str], everywhere: list[tuple[str, str]]) -> str:
    """What the writer of `key` may have meant: the same key of another section, else the nearest one."""
    if places := [f"{place}.{name}".removeprefix(".") for place, name in everywhere if name == key]:
        return f" (it belongs at {' or '.join(places)})"
    if near := difflib.get_close_matches(key.lower(), here, n=1):
        return f" (did you mean {near[0]}?)"
    if near := difflib.get_close_matches(key.lower(), [name for _, name in everywhere], n=1):
        place = next(place for place, name in everywhere if name == near[0])
        return f" (did you mean {near[0]} of {place or 'the file itself'}?)"
    return ""


def _all_keys(section: Sections, place: str = "") -> Iterator[tuple[str, str]]:
    """Every key of the file with the place of its section, such as ("models[].engine", "dtype")."""
    for name, field in section.model_fields.items():
        yield place, name
        if child := _child_section(field.annotation):
            suffix = "[]" if typing.get_origin(field.annotation) is list else ""
            yield from _all_keys(child, f"{place}.{name}{suffix}".removeprefix("."))


def _section_at(root: Sections, path: KeyPath) -> Sections:
    section = root
    for part in path:
        if isinstance(part, str):
            child = _child_section(section.model_fields[part].annotation)
            assert child is not None, f"{format_path(path)} is no section"
            section = child
    return section


def _child_section(annotation: Any) -> Sections | None:
    for candidate in (annotation, *typing.get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def _show(value: Any) -> str:
    """The value as it can be shown in a sentence."""
    if value is None:
        return "empty"
    if isinstance(value, dict):
        return "a section"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
