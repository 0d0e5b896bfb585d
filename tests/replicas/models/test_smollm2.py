"""The real SmolLM2-135M-Instruct, from its Q4_1 GGUF, against transformers' own reading of the file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from parallel.mesh import Mesh
from replicas.loading.checkpoint import load_model, open_checkpoint
from replicas.models.llama import CausalLM
from tests.support.paged import chunked_logits

pytestmark = pytest.mark.slow

TOKENS = torch.randint(3, 49152, (400,), generator=torch.Generator().manual_seed(0)).tolist()


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> CausalLM:
    return load_model(open_checkpoint(smollm2_path), Mesh(), torch.float32, torch.device("cpu"))


def test_weights_equal_those_transformers_reads(model: CausalLM, smollm2_oracle: PreTrainedModel) -> None:
    expected = smollm2_oracle.state_dict()
    for name, slot in model.weight_slots().items():
        assert torch.equal(slot.target, expected[name]), name


@pytest.mark.parametrize(("length", "chunk"), [(40, 1), (400, 7), (400, 128), (400, 400)])
def test_prompt_logprobs_equal_transformers(
    model: CausalLM, smollm2_oracle: PreTrainedModel, length: int, chunk: int
) -> None:
    token_ids = TOKENS[:length]
    with torch.inference_mode():
        expected = smollm2_oracle(torch.tensor([token_ids])).logits[0].log_softmax(-1)
    actual = chunked_logits(model, token_ids, chunk).log_softmax(-1)
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)
