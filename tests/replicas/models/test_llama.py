"""Prompt logprobs of every architecture against transformers, over the paged cache."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import MistralConfig, PreTrainedModel, Qwen2Config

from parallel.mesh import Mesh
from replicas.batch import ForwardBatch, KvLayer
from replicas.layers.attention import Attend
from replicas.layers.ops import TorchOps
from replicas.layers.reference_attention import ReferenceAttention
from replicas.loading.checkpoint import load_model, open_checkpoint
from replicas.models.llama import CausalLM
from replicas.models.registry import build_model
from tests.support.checkpoints import TINY_CONFIGS, VOCAB_SIZE, write_config, write_tiny
from tests.support.paged import PagedRun, chunked_logits

CPU = torch.device("cpu")
LENGTH = 90


class ReferenceOps(TorchOps):
    def plan_attention(self, batch: ForwardBatch, layer: KvLayer, window: int) -> Attend:
        return ReferenceAttention(batch, layer, window)


def tokens(length: int, seed: int = 0) -> list[int]:
    return torch.randint(3, VOCAB_SIZE, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def load(folder: Path) -> CausalLM:
    return load_model(open_checkpoint(folder), Mesh(), torch.float32, CPU)


def reference_logprobs(reference: PreTrainedModel, token_ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return reference(torch.tensor([token_ids])).logits[0].log_softmax(-1)


@pytest.fixture(scope="module", params=TINY_CONFIGS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[PreTrainedModel, CausalLM]:
    folder = tmp_path_factory.mktemp(request.param)
    return write_tiny(folder, TINY_CONFIGS[request.param]), load(folder)


@pytest.mark.parametrize("chunk", [1, 7, LENGTH])
def test_prompt_logprobs_equal_transformers(pair: tuple[PreTrainedModel, CausalLM], chunk: int) -> None:
    reference, model = pair
    token_ids = tokens(LENGTH)
    actual = chunked_logits(model, token_ids, chunk).log_softmax(-1)
    torch.testing.assert_close(actual, reference_logprobs(reference, token_ids), atol=1e-4, rtol=0)


def test_a_mixed_batch_equals_transformers(pair: tuple[PreTrainedModel, CausalLM]) -> None:
    """Prefills, a chunk and decodes of different lengths share one step."""
    reference, model = pair
    prompts = [tokens(length, seed=length) for length in (3, 70, 31, 40)]
    run = PagedRun(model, [len(prompt) for prompt in prompts])
    run.step([prompts[0][:-1], prompts[1][:-1], prompts[2][:20]], [0, 1, 2])
    logits = run.step([prompts[0][-1:], prompts[1][-1:], prompts[2][20:], prompts[3]])
    last_rows = torch.tensor([1, 1, 11, 40]).cumsum(0) - 1
    expected = torch.stack([reference_logprobs(reference, prompt)[-1] for prompt in prompts])
    torch.testing.assert_close(logits[last_rows].log_softmax(-1), expected, atol=1e-4, rtol=0)


def test_the_reference_backend_gives_the_same_logits(pair: tuple[PreTrainedModel, CausalLM]) -> None:
    _, model = pair
    token_ids, fast = tokens(40), model.ops
    expected = chunked_logits(model, token_ids, chunk=16)
    model.ops = ReferenceOps()
    try:
        torch.testing.assert_close(chunked_logits(model, token_ids, chunk=16), expected, atol=1e-4, rtol=0)
    finally:
        model.ops = fast


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_dtypes_stay_close(dtype: torch.dtype, tmp_path: Path) -> None:
    reference = write_tiny(tmp_path, TINY_CONFIGS["qwen3"])
    model = load_model(open_checkpoint(tmp_path), Mesh(), dtype, CPU)
    assert all(parameter.dtype == dtype for parameter in model.parameters())
    logits = chunked_logits(model, tokens(40), chunk=16)
    assert logits.dtype == torch.float32
    difference = (logits.log_softmax(-1) - reference_logprobs(reference, tokens(40))).abs().mean()
    assert difference < 0.1


class TestSlidingWindow:
    """How far back one token's influence on the last one reaches: exactly as far as with transformers."""

    WINDOW = 8
    SIZES = TINY_CONFIGS["llama"].to_dict()

    @pytest.fixture(params=["all layers", "last layer only"])
    def config(self, request: pytest.FixtureRequest) -> MistralConfig | Qwen2Config:
        keys = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "max_position_embeddings")
        sizes = {key: self.SIZES[key] for key in keys}
        if request.param == "all layers":
            return MistralConfig(**sizes, num_hidden_layers=1, num_key_value_heads=2, sliding_window=self.WINDOW)
        return Qwen2Config(
            **sizes,
            num_hidden_layers=2,
            num_key_value_heads=2,
            use_sliding_window=True,
            sliding_window=self.WINDOW,
            max_window_layers=1,
        )

    @pytest.mark.parametrize("distance", [WINDOW - 2, WINDOW - 1, WINDOW, WINDOW + 1])
    @pytest.mark.parametrize("chunk", [1, 3, 30], ids=["decode", "chunks below the window", "whole"])
    def test_influence_ends_where_it_does_in_transformers(
        self, config: MistralConfig | Qwen2Config, distance: int, chunk: int, tmp_path: Path
    ) -> None:
        reference, token_ids = write_tiny(tmp_path, config), tokens(30)
        changed = list(token_ids)
        changed[-1 - distance] = 3 + (changed[-1 - distance] + 1) % (VOCAB_SIZE - 3)
        model = load(tmp_path)
        for ids in (token_ids, changed):
            expected = reference_logprobs(reference, ids)[-1]
            actual = chunked_logits(model, ids, chunk)[-1].log_softmax(-1)
            torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)
        if isinstance(config, MistralConfig):
            before, after = (chunked_logits(model, ids, chunk)[-1] for ids in (token_ids, changed))
            assert torch.equal(before, after) == (distance >= self.WINDOW)


def test_an_unknown_architecture_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    write_config(tmp_path, TINY_CONFIGS["llama"], architectures=["MambaForCausalLM"])
    with pytest.raises(ValueError, match=r"MambaForCausalLM is not supported.*LlamaForCausalLM.*Qwen3ForCausalLM"):
        open_checkpoint(tmp_path)


def test_heads_that_the_ranks_cannot_divide_are_refused(tmp_path: Path) -> None:
    import torch.distributed as dist

    write_tiny(tmp_path, TINY_CONFIGS["llama"])
    mesh = Mesh(tensor=3, tensor_group=dist.ProcessGroup(0, 1))
    with pytest.raises(ValueError, match="num_attention_heads is 4"):
        build_model(open_checkpoint(tmp_path).config, mesh, torch.float32, CPU)
