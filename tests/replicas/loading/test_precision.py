"""What `dtype`, `quantization` and `kernels` come to, for which file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from parallel.matrix import PlainMatrix
from parallel.mesh import Mesh
from replicas.config import EngineConfig
from replicas.kernels.cpu.library import KernelsUnavailableError
from replicas.layers.compiled_ops import CompiledOps
from replicas.layers.ops import TorchOps
from replicas.layers.packed_matrix import PackedMatrix
from replicas.layers.quantized_matrix import QuantizedMatrix
from replicas.loading import precision as precision_module
from replicas.loading.checkpoint import Checkpoint, load_model, open_checkpoint
from replicas.loading.precision import Precision, resolve_precision
from replicas.models.llama import CausalLM
from tests.support.checkpoints import tiny_model, write_tiny
from tests.support.gguf_files import write_gguf
from tests.support.kernels import needs_kernels
from tests.support.paged import chunked_logits

FITTING = LlamaConfig(
    vocab_size=96,
    hidden_size=128,
    intermediate_size=192,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    max_position_embeddings=256,
    tie_word_embeddings=True,
)
CPU = torch.device("cpu")
TOKENS = [3 + index * 7 % 90 for index in range(40)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    write_tiny(folder, FITTING)
    return folder


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Checkpoint]:
    folder = tmp_path_factory.mktemp("gguf")
    kinds = ("F32", "Q4_0", "Q4_1", "Q8_0", "Q5_0")
    return {kind: open_checkpoint(write_gguf(folder / f"{kind}.gguf", tiny_model(FITTING), kind)) for kind in kinds}


def model_of(checkpoint: Checkpoint, precision: Precision) -> CausalLM:
    compute = precision.compute(checkpoint.config, Mesh())
    return load_model(checkpoint, Mesh(), precision.dtype, CPU, compute)


@needs_kernels
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("F32", "float32"),
        ("Q4_0", "bfloat16-int4"),
        ("Q4_1", "bfloat16-int4"),
        ("Q8_0", "bfloat16-int8"),
        ("Q5_0", "bfloat16-int8"),
    ],
)
def test_auto_keeps_the_form_of_the_file(gguf: dict[str, Checkpoint], kind: str, name: str) -> None:
    assert resolve_precision(EngineConfig(), gguf[kind]).name == name


@needs_kernels
@pytest.mark.parametrize(
    ("config", "name"),
    [
        (EngineConfig(dtype="float32"), "float32"),
        (EngineConfig(dtype="bfloat16"), "bfloat16"),
        (EngineConfig(quantization="none"), "bfloat16"),
        (EngineConfig(dtype="float32", quantization="int8"), "float32-int8"),
        (EngineConfig(quantization="int4"), "bfloat16-int4"),
        (EngineConfig(kernels="torch"), "float32"),
    ],
)
def test_what_is_asked_for_wins(gguf: dict[str, Checkpoint], config: EngineConfig, name: str) -> None:
    assert resolve_precision(config, gguf["Q4_1"]).name == name


def test_without_a_compiler_auto_means_plain_float32(
    gguf: dict[str, Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise KernelsUnavailableError("the compiled CPU kernels need a C++ compiler")

    monkeypatch.setattr(precision_module, "load_library", fail)
    assert resolve_precision(EngineConfig(), gguf["Q4_1"]).name == "float32"
    with pytest.raises(ValueError, match=r"need a C\+\+ compiler"):
        resolve_precision(EngineConfig(quantization="int4"), gguf["Q4_1"])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (EngineConfig(kernels="torch", quantization="int8"), "int8 needs the compiled CPU kernels"),
        (EngineConfig(device="cuda", quantization="int8"), "int8 needs the compiled CPU kernels"),
        (EngineConfig(device="cuda", kernels="compiled"), "for CPUs, but the device is cuda"),
    ],
)
def test_what_cannot_be_done_is_refused(gguf: dict[str, Checkpoint], config: EngineConfig, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolve_precision(config, gguf["F32"])


@needs_kernels
def test_forms_of_the_matrices(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)

    def forms(**config: str) -> tuple[type, type]:
        model = model_of(checkpoint, resolve_precision(EngineConfig(**config), checkpoint))  # type: ignore[arg-type]
        return type(model.layers[0].mlp.down.weight), type(model.head.weight)

    assert forms() == (PlainMatrix, PlainMatrix)
    assert forms(dtype="bfloat16") == (PackedMatrix, PackedMatrix)
    assert forms(dtype="bfloat16", kernels="torch") == (PlainMatrix, PlainMatrix)
    assert forms(quantization="int8") == (QuantizedMatrix, QuantizedMatrix)
    model = model_of(checkpoint, resolve_precision(EngineConfig(quantization="int4"), checkpoint))
    assert (model.layers[0].mlp.down.weight.bits, model.head.weight.bits) == (4, 8)


@needs_kernels
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_stored_codes_lose_nothing(gguf: dict[str, Checkpoint], kind: str) -> None:
    checkpoint = gguf[kind]
    exact = model_of(checkpoint, resolve_precision(EngineConfig(dtype="float32"), checkpoint))
    kept = model_of(checkpoint, resolve_precision(EngineConfig(), checkpoint))
    rows = torch.arange(96)
    assert torch.equal(kept.embedding.weight.lookup(rows), exact.embedding.weight.lookup(rows).bfloat16())


@needs_kernels
@pytest.mark.parametrize(
    ("config", "most"),
    [
        (EngineConfig(dtype="float32"), 1e-4),
        (EngineConfig(dtype="bfloat16"), 0.1),
        (EngineConfig(dtype="float32", quantization="int8"), 0.2),
        (EngineConfig(quantization="int8"), 0.2),
        (EngineConfig(quantization="int4"), 0.8),
    ],
)
def test_logprobs_stay_near_those_of_torch(folder: Path, config: EngineConfig, most: float) -> None:
    checkpoint = open_checkpoint(folder)
    expected = chunked_logits(load_model(checkpoint, Mesh(), torch.float32, CPU), TOKENS, 40).log_softmax(-1)
    model = model_of(checkpoint, resolve_precision(config, checkpoint))
    assert type(model.ops) is CompiledOps
    actual = chunked_logits(model, TOKENS, 16).log_softmax(-1)
    assert (actual - expected).abs().mean() < most


def test_models_that_the_kernels_do_not_fit_use_torch(tmp_path: Path) -> None:
    write_tiny(tmp_path, LlamaConfig(**{**FITTING.to_dict(), "num_attention_heads": 4, "head_dim": 32}))
    checkpoint = open_checkpoint(tmp_path)
    assert type(model_of(checkpoint, resolve_precision(EngineConfig(), checkpoint)).ops) is TorchOps
