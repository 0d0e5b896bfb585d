"""Tests of the compiled kernels run where they can be compiled."""

from __future__ import annotations

import pytest

from replicas.kernels.cpu.library import KernelsUnavailableError, load_library


def kernels_available() -> bool:
    try:
        load_library()
    except KernelsUnavailableError:
        return False
    return True


needs_kernels = pytest.mark.skipif(not kernels_available(), reason="no C++ compiler")
