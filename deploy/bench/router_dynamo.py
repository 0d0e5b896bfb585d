"""Dynamo's `RadixTree` under the load of `mobula bench router`. Runs with an interpreter that has `ai-dynamo-runtime`:
a load as JSON on standard input, the figures as JSON on standard output.

What differs from ours: a block is named by 64 bits of its key, and an event is a JSON message, which the tree parses on
a thread of its own (the package's Python interface has no other way in) while its caller waits.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from deploy.bench.router_load import Load, measure


class DynamoTree:
    """The tree behind the interface of the load."""

    def __init__(self) -> None:
        os.environ.setdefault("DYN_LOG", "error")
        from dynamo._core import RadixTree

        self._tree = RadixTree()
        self._event_id = 0

    def stored(self, replica: int, raw: bytes) -> tuple[int, bytes]:
        blocks = [{"block_hash": name, "tokens_hash": name} for name in _names(raw)]
        return self._event(replica, {"stored": {"parent_hash": None, "blocks": blocks}})

    def removed(self, replica: int, raw: bytes) -> tuple[int, bytes]:
        return self._event(replica, {"removed": {"block_hashes": _names(raw)}})

    def apply(self, prepared: Sequence[tuple[int, bytes]]) -> None:
        for replica, message in prepared:
            self._tree.apply_event(replica, message)

    def prompt(self, raw: bytes) -> list[int]:
        return _names(raw)

    def match(self, prepared: list[int]) -> int:
        return len(self._tree.find_matches(prepared).scores)

    def forget(self, replica: int) -> None:
        self._tree.remove_worker(replica)

    def _event(self, replica: int, data: dict[str, Any]) -> tuple[int, bytes]:
        self._event_id += 1
        return replica, json.dumps({"event_id": self._event_id, "data": data}).encode()


def _names(raw: bytes) -> list[int]:
    return [name for (name,) in struct.iter_unpack("<Q8x", raw)]


if __name__ == "__main__":
    print(json.dumps(asdict(measure(DynamoTree(), Load(**json.load(sys.stdin))))))
