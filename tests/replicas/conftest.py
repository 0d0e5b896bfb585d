"""Oracles that the engine's and the models' tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import PreTrainedModel

from tests.support.gguf_files import gguf_oracle


@pytest.fixture(scope="session")
def smollm2_oracle(smollm2_path: Path) -> PreTrainedModel:
    """SmolLM2 as transformers computes it in float32."""
    return gguf_oracle(smollm2_path)
