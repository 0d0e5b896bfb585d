"""Results share memory only where no call could tell."""

from __future__ import annotations

from itertools import combinations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.kernels.cpu.shared_memory import share_memory

SIZES = (64, 128)


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[torch.Tensor], list[list[int]]]:
    """Some results, and calls that each write one of them and read parts of earlier ones, among other numbers."""
    results = [torch.empty(draw(st.sampled_from(SIZES)), dtype=torch.uint8) for _ in range(draw(st.integers(1, 12)))]
    calls = []
    for index, result in enumerate(results):
        read = draw(st.lists(st.sampled_from(results[: index + 1]), max_size=3))
        offsets = [draw(st.integers(0, tensor.nbytes - 1)) for tensor in read]
        pointers = [tensor.data_ptr() + offset for tensor, offset in zip(read, offsets, strict=True)]
        calls.append([7, result.data_ptr(), *pointers, 0, draw(st.integers(0, 4096))])
    return results, calls


@settings(max_examples=200, deadline=None)
@given(program=programs())
def test_results_that_are_needed_at_the_same_time_do_not_overlap(
    program: tuple[list[torch.Tensor], list[list[int]]],
) -> None:
    results, calls = program
    before = [list(call) for call in calls]
    memory = share_memory(calls, results)

    spans, moved = [], set()
    for result in results:
        start, stop = result.data_ptr(), result.data_ptr() + result.nbytes
        uses = [(c, a) for c, call in enumerate(before) for a, value in enumerate(call) if start <= value < stop]
        bases = {calls[c][a] - (before[c][a] - start) for c, a in uses}
        assert len(bases) == 1, "all that point into a result move together"
        spans.append((uses[0][0], uses[-1][0], bases.pop(), result.nbytes))
        moved.update(uses)
    for (first, last, base, size), (other_first, other_last, other_base, other_size) in combinations(spans, 2):
        if first <= other_last and other_first <= last:
            assert base + size <= other_base or other_base + other_size <= base
    for _, _, base, size in spans:
        assert any(m.data_ptr() <= base and base + size <= m.data_ptr() + m.nbytes for m in memory)
    for c, call in enumerate(before):
        assert all(calls[c][a] == value for a, value in enumerate(call) if (c, a) not in moved)


def test_a_chain_of_any_length_needs_two_results() -> None:
    results = [torch.empty(64, dtype=torch.uint8) for _ in range(50)]
    calls = [[7, results[i].data_ptr(), results[i + 1].data_ptr()] for i in range(49)]
    assert len(share_memory(calls, results)) == 2
