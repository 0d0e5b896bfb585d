"""One schema as a document: what its references point to."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from replicas.grammar.schema.keywords import SchemaError

MAX_DEPTH = 64
_NOT_SCHEMAS = frozenset({"const", "enum", "default", "example", "examples"})


class Document:
    """References lead to places of the document itself: by JSON pointer or by `$anchor`."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self._anchors: dict[str, Any] = {}
        self._take_anchors(root)

    def resolve(self, reference: str) -> Any:
        """Raises SchemaError."""
        if not reference.startswith("#"):
            raise SchemaError("$ref", f"is {reference[:80]!r}, but must point into the schema itself")
        pointer = unquote(reference[1:])
        if pointer and not pointer.startswith("/"):
            if pointer not in self._anchors:
                raise SchemaError("$ref", f"is {reference[:80]!r}, but the schema has no such $anchor")
            return self._anchors[pointer]
        place = self.root
        for step in pointer.split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(place, dict) and name in place:
                place = place[name]
            elif isinstance(place, list) and name.isascii() and name.isdigit() and int(name) < len(place):
                place = place[int(name)]
            else:
                raise SchemaError("$ref", f"is {reference[:80]!r}, but the schema has nothing there")
        return place

    def _take_anchors(self, root: Any) -> None:
        stack = [(root, 0)]
        while stack:
            place, depth = stack.pop()
            if depth > 2 * MAX_DEPTH:
                raise SchemaError("schema", f"is nested more than {MAX_DEPTH} levels deep")
            if isinstance(place, dict):
                if isinstance(anchor := place.get("$anchor"), str):
                    self._anchors[anchor] = place
                if place is not root and isinstance(place.get("$id"), str):
                    raise SchemaError("$id", "is only supported at the top of a schema")
                stack += [(value, depth + 1) for name, value in place.items() if name not in _NOT_SCHEMAS]
            elif isinstance(place, list):
                stack += [(value, depth + 1) for value in place]
