"""Fixtures that every floor's tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy import catalog


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The real SmolLM2-135M-Instruct as a GGUF file, fetched on first use."""
    return catalog.fetch("smollm2-135m")
