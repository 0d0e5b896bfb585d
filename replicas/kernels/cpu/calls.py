"""Calling the compiled kernels, and writing calls down to make them again.

Every kernel takes an array of 64-bit integers. A `Recording` is the list of calls that were made while it was open:
made again, they read and write the same memory. Whoever records sees to it that this memory stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import Array, addressof, c_int64, c_void_p, cast
from functools import cache
from typing import Any

from replicas.kernels.cpu.library import load_library

_ARGUMENTS = 16

_open: list[Recording] = []


class Recording:
    """Kernel calls, in order. `keep` holds the tensors whose memory they use."""

    def __init__(self) -> None:
        self.keep: list[object] = []
        self._numbers: list[int] = []
        self._calls: Array[c_int64] | None = None

    def add(self, kernel: int, arguments: tuple[int, ...]) -> None:
        self._numbers += (kernel, *arguments, *(0,) * (_ARGUMENTS - len(arguments)))

    def replay(self) -> None:
        if self._calls is None:
            self._calls = (c_int64 * len(self._numbers))(*self._numbers)
        _kernel("run")(addressof(self._calls), len(self._calls) // (_ARGUMENTS + 1))


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


def keep(tensor: object) -> None:
    """Memory that a call uses must outlive a recording of it."""
    if _open:
        _open[-1].keep.append(tensor)


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
