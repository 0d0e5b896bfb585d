"""Fixtures that every floor's tests share."""

from __future__ import annotations

import os
from pathlib import Path

# Tiny tensors on many threads spend their time waiting for each other. Tests of the real model take more themselves.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

from deploy import catalog


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The real SmolLM2-135M-Instruct as a GGUF file, fetched on first use."""
    return catalog.fetch("smollm2-135m")


@pytest.fixture(scope="session")
def minilm_path() -> Path:
    """The real all-MiniLM-L6-v2 as a folder, fetched on first use."""
    return catalog.fetch("all-minilm-l6-v2")
