"""Read a YAML file the way a configuration deserves: with line numbers, environment variables, and no key twice."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from deploy.errors import UserError

KeyPath = tuple[str | int, ...]

_VARIABLE = re.compile(r"\$\{([^}]*)\}")
_MERGE_TAG = "tag:yaml.org,2002:merge"
_SHOWN_PROBLEMS = 10


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault: at which key, and the sentence about it."""

    path: KeyPath
    text: str
    line: int | None = None


class ConfigError(UserError):
    """A configuration file that is refused, with all that is wrong in it."""

    def __init__(self, file: Path, problems: list[Problem]) -> None:
        self.problems = problems
        shown = [f"line {p.line}: {p.text}" if p.line else p.text for p in problems[:_SHOWN_PROBLEMS]]
        if len(problems) > len(shown):
            shown.append(f"... and {len(problems) - len(shown)} more")
        super().__init__(f"{file} is not a valid configuration\n" + "\n".join(f"  {line}" for line in shown))


@dataclass(slots=True)
class YamlFile:
    """What a file says (`data`), on which line each key stands, and what is wrong with it as YAML."""

    path: Path
    data: Any = None
    lines: dict[KeyPath, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def line_of(self, path: KeyPath) -> int | None:
        """The line of the key, or of the nearest key around it that is in the file."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path)


def read_yaml(path: Path, environment: Mapping[str, str]) -> YamlFile:
    """Read `path` and put the values of `environment` in place of `${NAME}`. Raises ConfigError if it is no YAML."""
    file = YamlFile(path)
    text = _read_text(path)
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if root is not None:
            _Walk(file, loader, environment).visit(root, ())
            file.data = loader.construct_document(root)
    except yaml.MarkedYAMLError as error:
        raise ConfigError(path, [_syntax_problem(error)]) from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(path, [Problem((), f"the file cannot be read: {error}")]) from error
    except RecursionError as error:
        raise ConfigError(path, [Problem((), "the file is nested too deeply")]) from error
    return file


class _Walk:
    """Goes once through the nodes of a document: notes lines, finds keys given twice, puts in the environment."""

    def __init__(self, file: YamlFile, loader: yaml.SafeLoader, environment: Mapping[str, str]) -> None:
        self._file = file
        self._loader = loader
        self._environment = environment
        self._visited: set[int] = set()

    def visit(self, node: yaml.Node, path: KeyPath) -> None:
        self._file.lines.setdefault(path, node.start_mark.line + 1)
        if id(node) in self._visited:
            return
        self._visited.add(id(node))
        if isinstance(node, yaml.MappingNode):
            self._visit_mapping(node, path)
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self.visit(item, (*path, index))
        elif isinstance(node, yaml.ScalarNode):
            self._visit_scalar(node, path)

    def _visit_mapping(self, node: yaml.MappingNode, path: KeyPath) -> None:
        first_lines: dict[str, int] = {}
        for key, value in node.value:
            if key.tag == _MERGE_TAG:
                self.visit(value, path)
                continue
            name, line = str(key.value), key.start_mark.line + 1
            if name in first_lines:
                text = f"{format_path((*path, name))} is given twice, first on line {first_lines[name]}"
                self._file.problems.append(Problem((*path, name), text, line))
            first_lines.setdefault(name, line)
            self._file.lines.setdefault((*path, name), line)
            self.visit(value, (*path, name))

    def _visit_scalar(self, node: yaml.ScalarNode, path: KeyPath) -> None:
        if not _VARIABLE.search(node.value):
            return
        for name in _VARIABLE.findall(node.value):
            if name not in self._environment:
                text = f"{format_path(path)} is {node.value!r}, but the environment variable {name!r} is not set"
                self._file.problems.append(Problem(path, text, node.start_mark.line + 1))
        node.value = _VARIABLE.sub(lambda match: self._environment.get(match[1], match[0]), node.value)
        if node.style is None:  # unquoted, so `port: ${PORT}` may become a number
            node.tag = self._loader.resolve(yaml.ScalarNode, node.value, (True, False))  # type: ignore[no-untyped-call]


def format_path(path: KeyPath) -> str:
    """`models[0].engine.dtype`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from error
    except FileNotFoundError as error:
        raise UserError(f"there is no configuration file {path}") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error


def _syntax_problem(error: yaml.MarkedYAMLError) -> Problem:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else None
    if "'\\t'" in str(error.problem):
        return Problem((), "a tab stands where YAML allows only spaces", line)
    return Problem((), f"the file cannot be read as YAML: {error.problem or error.context}", line)
