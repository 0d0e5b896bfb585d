"""Calling the compiled kernels, and writing calls down to make them again.

Every kernel takes an array of 64-bit integers. A `Recording` is the list of calls that were made while it was open:
made again, they read and write the same memory. Whoever records sees to it that this memory stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import Array, addressof, c_int64, c_void_p, cast
from functools import cache
from itertools import chain
from typing import Any

import torch

from replicas.kernels.cpu.library import load_library
from replicas.kernels.cpu.shared_memory import share_memory

_ARGUMENTS = 16

_open: list[Recording] = []


class Recording:
    """Kernel calls, in order. `keep` holds tensors whose memory they use, `results` those that the calls made."""

    def __init__(self) -> None:
        self.keep: list[torch.Tensor] = []
        self.results: list[torch.Tensor] = []
        self._calls: list[list[int]] = []
        self._packed: Array[c_int64] | None = None

    def add(self, kernel: int, arguments: tuple[int, ...]) -> None:
        self._calls.append([kernel, *arguments, *(0,) * (_ARGUMENTS - len(arguments))])

    def close(self, result: torch.Tensor) -> None:
        """Nothing more will be recorded, and of all results only this one is wanted."""
        passing = [tensor for tensor in self.results if tensor.data_ptr() != result.data_ptr()]
        self.keep += [result, *share_memory(self._calls, passing)]
        self.results = []
        self._packed = (c_int64 * (len(self._calls) * (_ARGUMENTS + 1)))(*chain.from_iterable(self._calls))

    def replay(self) -> None:
        assert self._packed is not None, "a recording is closed before it is replayed"
        _kernel("run")(addressof(self._packed), len(self._calls))


@contextmanager
def recording() -> Iterator[Recording]:
    """Write down all calls that are made within, beside making them."""
    recorded = Recording()
    _open.append(recorded)
    try:
        yield recorded
    finally:
        _open.pop()


def launch(name: str, *arguments: int) -> None:
    """Call a kernel."""
    _kernel(name)((c_int64 * len(arguments))(*arguments))
    if _open:
        _open[-1].add(_address(name), arguments)


def keep(result: torch.Tensor) -> None:
    """Tell open recordings of a tensor that a call will write."""
    if _open:
        _open[-1].results.append(result)


@cache
def _kernel(name: str) -> Any:
    kernel = load_library()[f"mobula_{name}"]
    kernel.argtypes = [c_void_p, c_int64] if name == "run" else [c_void_p]
    kernel.restype = None
    return kernel


@cache
def _address(name: str) -> int:
    address = cast(_kernel(name), c_void_p).value
    assert address is not None
    return address
