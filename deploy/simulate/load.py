"""What is offered to a cluster: requests with their arrival times, lengths and the keys of their KV blocks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path

from deploy.errors import UserError
from replicas.kv.prefix import KEY_BYTES

TRACE_BLOCK = 512  # tokens that one hash id of a Mooncake trace stands for


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request: seconds after the start, prompt and answer in tokens, keys of the prompt's full blocks."""

    time: float
    num_tokens: int
    max_tokens: int
    block_keys: tuple[bytes, ...]
    session: str | None = None


def read_trace(file: Path, block_size: int) -> list[Arrival]:
    """A trace in Mooncake's format (Qin et al., FAST 2025), in order of time. Its hash ids are chained already: equal
    ids mean equal prefixes."""
    if TRACE_BLOCK % block_size:
        raise UserError(f"block size is {block_size}, but must divide {TRACE_BLOCK}, the tokens of a trace's block")
    keys = _TraceKeys(TRACE_BLOCK // block_size)
    try:
        lines = file.read_text().splitlines()
    except OSError as error:
        raise UserError(f"the trace {file} cannot be read: {error.strerror}") from error
    arrivals = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            time, length, answer = row["timestamp"] / 1e3, int(row["input_length"]), int(row["output_length"])
            block_keys = keys.of(row["hash_ids"], length // block_size)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"line {number} of {file} is not a row of a Mooncake trace: {error!r}") from error
        arrivals.append(Arrival(time, length, max(answer, 1), block_keys))
    if not arrivals:
        raise UserError(f"the trace {file} is empty")
    return sorted(arrivals, key=lambda arrival: arrival.time)


def at_rate(arrivals: Sequence[Arrival], scale: float) -> list[Arrival]:
    """The same requests, `scale` times as many a second."""
    return [replace(arrival, time=arrival.time / scale) for arrival in arrivals]


class _TraceKeys:
    """Keys of the `parts` KV blocks that a trace's block is made of, computed once."""

    def __init__(self, parts: int) -> None:
        self._parts = parts
        self._known: dict[int, tuple[bytes, ...]] = {}

    def of(self, hash_ids: Sequence[int], count: int) -> tuple[bytes, ...]:
        keys: list[bytes] = []
        for hash_id in hash_ids[: -(-count // self._parts)]:
            if hash_id not in self._known:
                self._known[hash_id] = tuple(
                    blake2b(f"{hash_id}.{part}".encode(), digest_size=KEY_BYTES).digest() for part in range(self._parts)
                )
            keys += self._known[hash_id]
        return tuple(keys[:count])
