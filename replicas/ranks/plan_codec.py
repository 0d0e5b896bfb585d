"""Step plans as bytes: 32-bit integers, column by column, since a plan reaches every rank in every step.

New blocks are listed only for the work rows that get some. An admission, once a request, carries its sampling
parameters as JSON, which keeps every float exact. Masks of constrained rows stand at the end.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict
from itertools import starmap
from typing import Any

import numpy as np
import torch

from replicas.grammar.masks import FilledMasks
from replicas.plan import Admission, Masks, StepPlan, Work
from replicas.sampling.grammar_spec import Grammar
from replicas.sampling.params import SamplingParams

INT_BYTES = 4


def encode_plan(plan: StepPlan) -> bytes:
    slots, counts, blocks = zip(*plan.work, strict=True) if plan.work else ((), (), ())
    growing = [(row, block_ids) for row, block_ids in enumerate(blocks) if block_ids]
    numbers = [plan.num_decodes, len(plan.released), len(plan.work), len(growing), len(plan.admitted)]
    numbers += plan.released
    numbers += slots
    numbers += counts
    for row, block_ids in growing:
        numbers += (row, len(block_ids))
        numbers += block_ids
    sampling = b""
    for admission in plan.admitted:
        params = json.dumps(asdict(admission.sampling)).encode()
        sampling += params
        numbers += (admission.slot, admission.num_prompt, admission.num_computed, admission.num_scored)
        numbers += (len(admission.token_ids), len(admission.block_ids), len(params))
        numbers += admission.token_ids
        numbers += admission.block_ids
    plan_bytes = struct.pack(f"<{len(numbers) + 1}i", len(numbers), *numbers) + sampling
    return plan_bytes if plan.masks is None else plan_bytes + _encode_masks(plan.masks)


def decode_plan(data: bytes) -> StepPlan:
    (count,) = struct.unpack_from("<i", data)
    numbers = _Numbers(struct.unpack_from(f"<{count}i", data, INT_BYTES))
    num_decodes, num_released, num_work, num_growing, num_admitted = numbers.take(5)
    released = numbers.take(num_released)
    slots, counts = numbers.take(num_work), numbers.take(num_work)
    blocks: list[tuple[int, ...]] = [()] * num_work
    for _ in range(num_growing):
        row, num_blocks = numbers.take(2)
        blocks[row] = numbers.take(num_blocks)
    work = tuple(starmap(Work, zip(slots, counts, blocks, strict=True)))
    admitted = []
    start = INT_BYTES * (count + 1)
    for _ in range(num_admitted):
        slot, num_prompt, num_computed, num_scored, num_tokens, num_blocks, num_bytes = numbers.take(7)
        token_ids, block_ids = numbers.take(num_tokens), numbers.take(num_blocks)
        sampling = _sampling(data[start : start + num_bytes])
        start += num_bytes
        admitted.append(Admission(slot, token_ids, num_prompt, num_computed, block_ids, sampling, num_scored))
    return StepPlan(released, tuple(admitted), work, num_decodes, _decode_masks(data[start:]))


class _Numbers:
    """Integers, read from the front."""

    def __init__(self, values: tuple[int, ...]) -> None:
        self._values = values
        self._position = 0

    def take(self, count: int) -> tuple[int, ...]:
        start, self._position = self._position, self._position + count
        return self._values[start : self._position]


def _encode_masks(masks: Masks) -> bytes:
    rows = np.array(masks.rows, dtype=np.int32)
    return struct.pack("<i", len(rows)) + rows.tobytes() + masks.words_NW.numpy().tobytes()


def _decode_masks(data: bytes) -> Masks | None:
    if not data:
        return None
    (count,) = struct.unpack_from("<i", data)
    numbers = np.frombuffer(data, dtype=np.int32, offset=INT_BYTES).copy()
    return FilledMasks(tuple(numbers[:count].tolist()), torch.from_numpy(numbers[count:].reshape(count, -1)))


def _sampling(data: bytes) -> SamplingParams:
    fields: dict[str, Any] = {name: _as_tuples(value) for name, value in json.loads(data).items()}
    if fields["grammar"] is not None:
        grammar = fields["grammar"]
        fields["grammar"] = Grammar(grammar["kind"], grammar["text"], _as_tuples(grammar["after"]))
    return SamplingParams(**fields)


def _as_tuples(value: Any) -> Any:
    """JSON knows no tuples, only lists."""
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value
