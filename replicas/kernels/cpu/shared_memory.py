"""Letting the results of recorded calls share memory.

Calls are made again in their order, so the memory of a result is free behind the last call that uses it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from heapq import heappop, heappush

import torch

Use = tuple[int, int]  # a call, and the place of an argument


def share_memory(calls: Sequence[list[int]], results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Let the calls use other memory for these results, which are all the results there are at their addresses.
    Returns that memory."""
    memory: list[torch.Tensor] = []
    free: dict[int, list[int]] = defaultdict(list)  # by size: which memory
    busy: list[tuple[int, int]] = []  # last use, and which memory
    for uses, result in sorted(zip(_uses(calls, results), results, strict=True), key=lambda pair: pair[0]):
        first, last = uses[0][0], uses[-1][0]
        while busy and busy[0][0] < first:
            index = heappop(busy)[1]
            free[memory[index].nbytes].append(index)
        if not free[result.nbytes]:
            free[result.nbytes].append(len(memory))
            memory.append(torch.empty(result.nbytes, dtype=torch.uint8))
        index = free[result.nbytes].pop()
        for call, place in uses:
            calls[call][place] += memory[index].data_ptr() - result.data_ptr()
        heappush(busy, (last, index))
    return memory


def _uses(calls: Sequence[list[int]], results: Sequence[torch.Tensor]) -> list[list[Use]]:
    """For each result, the arguments that point into it."""
    order = sorted(range(len(results)), key=lambda index: results[index].data_ptr())
    starts = [results[index].data_ptr() for index in order]
    uses: list[list[Use]] = [[] for _ in results]
    for call, arguments in enumerate(calls):
        for place, argument in enumerate(arguments):
            nearest = bisect_right(starts, argument) - 1
            if nearest >= 0 and argument < starts[nearest] + results[order[nearest]].nbytes:
                uses[order[nearest]].append((call, place))
    return uses
