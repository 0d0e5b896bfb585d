"""Large memory pages for tensors that are read from end to end, so that fewer of them must be looked up."""

from __future__ import annotations

import ctypes
import mmap

import torch


def prefer_huge_pages(tensor: torch.Tensor) -> None:
    """Ask for huge pages where the system has them on request (Linux). To be called before the tensor is written."""
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is None or tensor.device.type != "cpu":
        return
    start = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    size = (tensor.data_ptr() + tensor.nbytes - start) // mmap.PAGESIZE * mmap.PAGESIZE
    if size > 0:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), advice)
