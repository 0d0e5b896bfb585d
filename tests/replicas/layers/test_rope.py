"""Every kind of rope scaling against transformers, at every position, as frequencies and as prompt logprobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from parallel.mesh import Mesh
from replicas.layers.rope import RotaryEmbedding, apply_rope
from replicas.loading.checkpoint import load_model, open_checkpoint
from replicas.loading.hf_config import read_hf_config
from tests.support.checkpoints import VOCAB_SIZE, scaled, write_config, write_tiny
from tests.support.paged import PagedRun, chunked_logits

CPU = torch.device("cpu")
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"factor": 8.0, "original_max_position_embeddings": 64}

# Static kinds: the angles depend on nothing but the position.
STATIC: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {"rope_type": "llama3", **LLAMA3},
    "yarn": {"rope_type": "yarn", **YARN},
    "yarn untruncated": {"rope_type": "yarn", **YARN, "truncate": False, "beta_fast": 16.0, "beta_slow": 2.0},
    "yarn with a factor of its own": {"rope_type": "yarn", **YARN, "attention_factor": 0.7},
    "yarn with mscale": {"rope_type": "yarn", **YARN, "mscale": 0.8, "mscale_all_dim": 1.2},
}


def prompt(length: int) -> list[int]:
    return torch.randint(3, VOCAB_SIZE, (length,), generator=torch.Generator().manual_seed(length)).tolist()


@pytest.mark.parametrize("kind", STATIC)
def test_angles_equal_transformers_at_all_positions(kind: str, tmp_path: Path) -> None:
    config = scaled(STATIC[kind])
    write_config(tmp_path, config)
    positions = torch.arange(config.max_position_embeddings)
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), positions[None])
    ours_cos, ours_sin = RotaryEmbedding(read_hf_config(tmp_path), CPU)(positions, None, torch.float32)
    half = cos.size(-1) // 2
    torch.testing.assert_close(ours_cos[:, 0], cos[0, :, :half], atol=1e-4, rtol=0)
    torch.testing.assert_close(ours_sin[:, 0], sin[0, :, :half], atol=1e-4, rtol=0)


def test_rotation_equals_transformers() -> None:
    torch.manual_seed(0)
    x, angles = torch.randn(5, 3, 8), torch.randn(5, 4)
    cos, sin = (torch.cat((part, part), dim=-1) for part in (angles.cos(), angles.sin()))
    rotated, _ = apply_rotary_pos_emb(x, x, cos, sin)
    assert torch.equal(apply_rope(x, angles.cos()[:, None], angles.sin()[:, None]), rotated)


@pytest.mark.parametrize("kind", STATIC)
def test_prompt_logprobs_equal_transformers(kind: str, tmp_path: Path) -> None:
    reference = write_tiny(tmp_path, scaled(STATIC[kind]))
    model = load_model(open_checkpoint(tmp_path), Mesh(), torch.float32, CPU)
    for length in (32, 200, 500):
        token_ids = prompt(length)
        with torch.inference_mode():
            expected = reference(torch.tensor([token_ids])).logits[0].log_softmax(-1)
        actual = chunked_logits(model, token_ids, chunk=150).log_softmax(-1)
        torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)


class TestDynamic:
    """The one kind whose angles depend on the sequence's length, against a prefill and decodes by transformers."""

    @pytest.fixture(params=[32, 64, 65, 200])
    def prompt_length(self, request: pytest.FixtureRequest) -> int:
        return int(request.param)

    @pytest.mark.parametrize("chunk", [7, 500])
    def test_prefill_and_decode_equal_transformers(self, prompt_length: int, chunk: int, tmp_path: Path) -> None:
        reference = write_tiny(tmp_path, scaled({"rope_type": "dynamic", "factor": 4.0}, max_positions=64))
        model = load_model(open_checkpoint(tmp_path), Mesh(), torch.float32, CPU)
        token_ids, following = prompt(prompt_length), prompt(40)
        with torch.inference_mode():
            output = reference(torch.tensor([token_ids]), use_cache=True)
            expected = [output.logits[0]]
            for token_id in following:
                output = reference(torch.tensor([[token_id]]), cache=output.past_key_values)
                expected.append(output.logits[0])
        run = PagedRun(model, [prompt_length + 40], num_prompts=[prompt_length])
        actual = [run.step([token_ids[start : start + chunk]]) for start in range(0, prompt_length, chunk)]
        actual += [run.step([[token_id]]) for token_id in following]
        torch.testing.assert_close(
            torch.cat(actual).log_softmax(-1), torch.cat(expected).log_softmax(-1), atol=1e-4, rtol=0
        )

    def test_neighbours_in_the_batch_change_nothing(self, tmp_path: Path) -> None:
        write_tiny(tmp_path, scaled({"rope_type": "dynamic", "factor": 4.0}, max_positions=64))
        model = load_model(open_checkpoint(tmp_path), Mesh(), torch.float32, CPU)
        short, long = prompt(20), prompt(200)
        together = PagedRun(model, [20, 200]).step([short, long])
        alone = PagedRun(model, [20]).step([short])
        torch.testing.assert_close(together[:20], alone, atol=1e-4, rtol=0)
