"""What a run cannot do without, against the model's own tensors and a count of one token after another."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest
import torch

from deploy.bench.engine.work import Work, decode_work, form_of, prefill_work, run_work, weights_read
from deploy.bench.serve.outcome import Outcome
from deploy.plan.arithmetic import decode_bytes
from deploy.plan.shapes import SHAPES
from parallel.mesh import Mesh
from replicas.config import EngineConfig, ModelConfig, Quantization
from replicas.layers.quantized_matrix import QuantizedMatrix
from replicas.models.registry import build_model

SHAPE = next(iter(SHAPES.values()))
SMALL = replace(
    SHAPE, vocab_size=50, hidden_size=24, intermediate_size=40, num_layers=3, num_heads=4, num_kv_heads=2, head_dim=6
)
MODEL = replace(SMALL, sliding_windows=(0, 5, 0), tie_word_embeddings=True)
FORM = form_of(EngineConfig(dtype="bfloat16", quantization="none"))


def outcome(prompt: int, output: int, cached: int = 0) -> Outcome:
    return Outcome(0.0, 0.0, 1.0, array("d"), prompt, cached, output)


def one_token(model: ModelConfig, position: int, sampled: bool) -> int:
    """Operations of the token at a position, layer by layer and matrix by matrix."""
    hidden, inner, heads = model.hidden_size, model.intermediate_size, model.num_heads * model.head_dim
    matrices = hidden * heads * 2 + hidden * model.num_kv_heads * model.head_dim * 2 + 3 * hidden * inner
    flops = 0
    for window in model.sliding_windows:
        seen = min(position + 1, window) if window else position + 1
        flops += 2 * matrices + 4 * seen * heads
    return flops + (2 * hidden * model.vocab_size if sampled else 0)


@pytest.mark.parametrize("tied", [True, False])
def test_a_step_reads_all_weights_but_an_embedding_of_its_own(tied: bool) -> None:
    config = replace(MODEL, tie_word_embeddings=tied)
    model = build_model(config, Mesh(), torch.bfloat16, torch.device("meta"))
    held = sum(parameter.nbytes for parameter in model.parameters())
    embedding = 0 if tied else 2 * config.vocab_size * config.hidden_size
    norm = 2 * config.hidden_size  # the last one, too small to count
    assert weights_read(config, FORM) == held - embedding - norm


@pytest.mark.parametrize(("quantization", "bits"), [("int4", 4), ("int8", 8)])
def test_quantized_weights_count_as_the_matrices_hold_them(quantization: Quantization, bits: int) -> None:
    form = form_of(EngineConfig(dtype="bfloat16", quantization=quantization))
    layer, head = QuantizedMatrix((64, 96), bits, torch.bfloat16), QuantizedMatrix((64, 96), 8, torch.bfloat16)
    assert layer.panels.nbytes == 64 * 96 * form.layer_bytes
    assert head.panels.nbytes == 64 * 96 * form.head_bytes
    linears, vocabulary = decode_bytes(MODEL, 1, 0, 0, 1), MODEL.vocab_size * MODEL.hidden_size
    assert weights_read(MODEL, form) == (linears - vocabulary) * form.layer_bytes + vocabulary * form.head_bytes


def test_narrow_weights_are_read_faster_but_keys_and_values_are_not() -> None:
    narrow = form_of(EngineConfig(dtype="bfloat16", quantization="int4"))
    wide, small = (decode_work(MODEL, form, 100).bytes for form in (FORM, narrow))
    assert wide - small == pytest.approx(weights_read(MODEL, FORM) - weights_read(MODEL, narrow))


def test_a_run_is_all_its_tokens_one_after_another() -> None:
    work = run_work(MODEL, FORM, [outcome(9, 4), outcome(20, 1, cached=16)], steps=5)
    expected = sum(one_token(MODEL, position, position >= 8) for position in range(12))
    expected += sum(one_token(MODEL, position, position == 19) for position in range(16, 20))
    assert work.flops == expected
    kv_bytes = sum(
        2 * MODEL.num_kv_heads * MODEL.head_dim * 2 * (min(context, window) if window else context)
        for context in (9, 10, 11)
        for window in MODEL.sliding_windows
    )
    assert work.bytes == 5 * weights_read(MODEL, FORM) + kv_bytes


def test_a_prompt_and_its_further_tokens_are_a_run() -> None:
    prompt, second, third = prefill_work(MODEL, FORM, 30), decode_work(MODEL, FORM, 30), decode_work(MODEL, FORM, 31)
    whole = run_work(MODEL, FORM, [outcome(30, 3)], steps=3)
    parts = (prompt, second, third)
    assert whole == Work(sum(part.flops for part in parts), sum(part.bytes for part in parts))


def test_what_is_cached_need_not_be_computed() -> None:
    whole = prefill_work(MODEL, FORM, 64)
    assert prefill_work(MODEL, FORM, 64, cached=48).flops < whole.flops / 3
    assert prefill_work(MODEL, FORM, 64, cached=0) == whole
