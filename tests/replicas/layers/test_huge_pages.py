"""Linux marks memory for which huge pages were asked with the flag `hg` in a process' map."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from replicas.layers.huge_pages import prefer_huge_pages

SMAPS = Path("/proc/self/smaps")


def flags_at(address: int) -> list[str]:
    inside = False
    for line in SMAPS.read_text().splitlines():
        first = line.split()[0]
        if "-" in first and not first.endswith(":"):
            start, stop = (int(bound, 16) for bound in first.split("-"))
            inside = start <= address < stop
        elif inside and first == "VmFlags:":
            return line.split()[1:]
    raise AssertionError("no such address")


@pytest.mark.skipif(sys.platform != "linux" or not SMAPS.exists(), reason="no map of the process' memory")
def test_large_tensors_are_marked() -> None:
    tensor = torch.empty(8 * 1024**2, dtype=torch.bfloat16)
    middle = tensor.data_ptr() + tensor.nbytes // 2
    if not Path("/sys/kernel/mm/transparent_hugepage/enabled").exists():
        pytest.skip("a kernel without huge pages")
    assert "hg" not in flags_at(middle)
    prefer_huge_pages(tensor)
    assert "hg" in flags_at(middle)


@pytest.mark.parametrize("size", [0, 1, 1000])
def test_small_tensors_are_left_alone(size: int) -> None:
    prefer_huge_pages(torch.zeros(size))
