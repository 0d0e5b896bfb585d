"""GGUF files against the models they were made from, and against transformers' own reading of them."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, PreTrainedModel
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from parallel.mesh import Mesh
from parallel.sharding import Shard, WeightSlot
from replicas.config import RopeScaling
from replicas.loading.checkpoint import load_model, open_checkpoint
from replicas.loading.errors import CheckpointError
from tests.support.checkpoints import TINY_CONFIGS, VOCAB_SIZE, scaled, tiny_model
from tests.support.gguf_files import llama3_factors, write_gguf
from tests.support.paged import chunked_logits

CPU = torch.device("cpu")
TOKENS = torch.randint(3, VOCAB_SIZE, (40,), generator=torch.Generator().manual_seed(0)).tolist()
# Rows of whole quantization blocks: 32 for the simple kinds, 256 for the K-quants.
BLOCKY = LlamaConfig(
    vocab_size=131,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
)


def logprobs(path: Path, token_ids: list[int] = TOKENS) -> torch.Tensor:
    model = load_model(open_checkpoint(path), Mesh(), torch.float32, CPU)
    return chunked_logits(model, token_ids, chunk=17).log_softmax(-1)


def reference_logprobs(model: PreTrainedModel, token_ids: list[int] = TOKENS) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([token_ids])).logits[0].log_softmax(-1)


@pytest.mark.parametrize("name", [name for name in TINY_CONFIGS if "mistral" not in name and "window" not in name])
def test_logprobs_equal_the_model_that_was_converted(name: str, tmp_path: Path) -> None:
    """Tied and untied, with biases and with normalised queries: the file says which."""
    model = tiny_model(TINY_CONFIGS[name])
    path = write_gguf(tmp_path / "model.gguf", model)
    torch.testing.assert_close(logprobs(path), reference_logprobs(model), atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_weights_equal_what_transformers_reads(kind: str, tmp_path: Path) -> None:
    reference = tiny_model(BLOCKY)
    path = write_gguf(tmp_path / "model.gguf", reference, kind)
    weights = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=reference)["tensors"]
    model = load_model(open_checkpoint(path), Mesh(), torch.float32, CPU)
    slots = model.weight_slots()
    assert slots.keys() == weights.keys()
    for name, slot in slots.items():
        assert torch.equal(slot.target, weights[name].float()), name
    reference.load_state_dict(weights)
    torch.testing.assert_close(logprobs(path), reference_logprobs(reference), atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"])
def test_k_quants_are_dequantized_row_by_row(kind: str, tmp_path: Path) -> None:
    """The library can't write them: rows of random blocks stand in, with scales that are finite."""
    quantization = GGMLQuantizationType[kind]
    _, block_bytes = GGML_QUANT_SIZES[quantization]
    random = np.random.default_rng(0)
    blocks = random.integers(0, 256, (3000, block_bytes), dtype=np.uint8)
    blocks[:, [1, 3, -1, -3]] &= 0x3B
    config = LlamaConfig(
        vocab_size=3000,
        hidden_size=256,
        intermediate_size=256,
        num_hidden_layers=1,
        num_attention_heads=4,
        tie_word_embeddings=True,
    )
    path = write_gguf(tmp_path / "model.gguf", tiny_model(config), tensors={"token_embd.weight": None})
    _append_tensor(path, tmp_path / "k.gguf", "token_embd.weight", blocks, quantization)
    embedding = load_model(open_checkpoint(tmp_path / "k.gguf"), Mesh(), torch.float32, CPU).embedding.weight.part(
        0, 3000
    )
    expected = torch.from_numpy(gguf.quants.dequantize(blocks, quantization))
    assert expected.isfinite().all()
    assert torch.equal(embedding, expected)


def _append_tensor(source: Path, target: Path, name: str, array: np.ndarray, kind: GGMLQuantizationType) -> None:
    """Copy a GGUF file, with one tensor more, already quantized."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, "llama")
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            writer.add_key_value(key, field.contents(), field.types[0])
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data))
    writer.add_tensor(name, array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_1"])
@pytest.mark.parametrize(
    "name",
    ["model.layers.0.self_attn.q_proj.weight", "model.layers.1.mlp.down_proj.weight", "model.embed_tokens.weight"],
)
@pytest.mark.parametrize("shard", [Shard(0, 16, 48), Shard(1, 32, 64), Shard(1, 3, 30)])
def test_ranks_read_slices(kind: str, name: str, shard: Shard, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_gguf(tmp_path / "model.gguf", tiny_model(BLOCKY), kind))
    shape = checkpoint.shapes[name]
    whole = torch.empty(shape)
    checkpoint.read_into(name, WeightSlot(whole, shape))
    expected = whole.narrow(shard.dim, shard.start, shard.stop - shard.start)
    target = torch.empty(expected.shape)
    checkpoint.read_into(name, WeightSlot(target, shape, shard))
    assert torch.equal(target, expected)


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONG = torch.randint(3, VOCAB_SIZE, (300,), generator=torch.Generator().manual_seed(1)).tolist()


class TestRopeScaling:
    def test_llama3_comes_as_a_tensor_of_divisors(self, tmp_path: Path) -> None:
        model = tiny_model(scaled(LLAMA3))
        plain = LlamaRotaryEmbedding(scaled({"rope_type": "default"})).inv_freq
        factors = llama3_factors(plain, LlamaRotaryEmbedding(model.config).inv_freq)
        assert factors.max() > 7
        path = write_gguf(tmp_path / "model.gguf", model, tensors={"rope_freqs.weight": factors})
        torch.testing.assert_close(logprobs(path, LONG), reference_logprobs(model, LONG), atol=1e-4, rtol=0)

    @pytest.mark.parametrize("kind", ["linear", "yarn"])
    def test_linear_and_yarn_come_as_metadata(self, kind: str, tmp_path: Path) -> None:
        scaling = {"rope_type": kind, "factor": 8.0}
        if kind == "yarn":
            scaling["original_max_position_embeddings"] = 64
        model = tiny_model(scaled(scaling))
        metadata = {".rope.scaling.type": kind, ".rope.scaling.factor": 8.0}
        if kind == "yarn":
            metadata[".rope.scaling.original_context_length"] = 64
        path = write_gguf(tmp_path / "model.gguf", model, metadata=metadata)
        torch.testing.assert_close(logprobs(path, LONG), reference_logprobs(model, LONG), atol=1e-4, rtol=0)

    def test_none_is_none(self, tmp_path: Path) -> None:
        metadata = {".rope.scaling.type": "none"}
        path = write_gguf(tmp_path / "model.gguf", tiny_model(BLOCKY), metadata=metadata)
        assert open_checkpoint(path).config.rope_scaling is None

    def test_the_original_length_falls_back_to_the_model_s(self, tmp_path: Path) -> None:
        metadata = {".rope.scaling.type": "linear", ".rope.scaling.factor": 2.0}
        path = write_gguf(tmp_path / "model.gguf", tiny_model(BLOCKY), metadata=metadata)
        assert open_checkpoint(path).config.rope_scaling == RopeScaling("linear", 2.0, 128)


def test_end_of_turn_is_an_end_too(tmp_path: Path) -> None:
    metadata = {"tokenizer.ggml.eot_token_id": 7}
    path = write_gguf(tmp_path / "model.gguf", tiny_model(BLOCKY), metadata=metadata)
    assert open_checkpoint(path).config.eos_token_ids == (2, 7)


FAULTS: dict[str, tuple[dict[str, object], dict[str, np.ndarray | None], str]] = {
    "unknown architecture": (
        {"general.architecture": "mamba"},
        {},
        r"architecture mamba is not supported; known ones are llama, qwen2",
    ),
    "missing tensor": ({}, {"blk.1.ffn_up.weight": None}, r"tensor blk\.1\.ffn_up\.weight is missing"),
    "missing norm": ({}, {"output_norm.weight": None}, r"tensor output_norm\.weight is missing"),
    "missing embedding": ({}, {"token_embd.weight": None}, r"tensor token_embd\.weight is missing"),
    "surplus tensor": ({}, {"blk.0.ssm_a": np.ones(4)}, r"tensor blk\.0\.ssm_a has no place in LlamaForCausalLM"),
    "surplus layer": ({}, {"blk.2.ffn_up.weight": np.ones((96, 64))}, r"tensor blk\.2\.ffn_up\.weight has no place"),
    "half of the biases": ({}, {"blk.0.attn_q.bias": np.ones(64)}, r"tensor blk\.0\.attn_k\.bias is missing"),
    "wrong shape": (
        {},
        {"blk.0.ffn_up.weight": np.ones((96, 32))},
        r"tensor blk\.0\.ffn_up\.weight has shape \(96, 32\), but the configuration needs \(96, 64\)",
    ),
    "vocabulary that disagrees": (
        {".vocab_size": 130},
        {},
        r"tensor token_embd\.weight has shape \(131, 64\), but .* needs \(130, 64\)",
    ),
    "missing key": ({".block_count": None}, {}, r"llama\.block_count is missing"),
    "key of the wrong type": ({".block_count": "two"}, {}, r"llama\.block_count is 'two', but must be an integer"),
    "absurdly many layers": ({".block_count": 2**31}, {}, "block_count is 2147483648, but must be at most 4096"),
    "heads that differ between layers": (
        {".attention.head_count_kv": [2, 1]},
        {},
        r"llama\.attention\.head_count_kv is \[2, 1\]",
    ),
    "partly rotated heads": ({".rope.dimension_count": 8}, {}, r"rope\.dimension_count is 8, but only whole heads"),
    "unknown rope scaling": (
        {".rope.scaling.type": "longrope"},
        {},
        r"rope\.scaling\.type is 'longrope', but must be one of none, linear",
    ),
    "unknown part of a known rope scaling": (
        {".rope.scaling.type": "yarn", ".rope.scaling.yarn_log_multiplier": 0.1},
        {},
        "yarn_log_multiplier is 0.1",
    ),
    "split file": ({"split.count": 3}, {}, r"one of 3 parts of a split model"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_file_is_refused_by_name(fault: str, tmp_path: Path) -> None:
    metadata, tensors, message = FAULTS[fault]
    path = write_gguf(tmp_path / "model.gguf", tiny_model(BLOCKY), metadata=metadata, tensors=tensors)
    with pytest.raises(CheckpointError, match=message) as refusal:
        open_checkpoint(path)
    assert str(path) in str(refusal.value)


def test_a_quantization_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", tiny_model(BLOCKY), "F16")
    name = b"blk.0.ffn_up.weight"
    data = bytearray(path.read_bytes())
    kind_at = data.index(name) + len(name) + 4 + 2 * 8
    for kind, message in (
        (GGMLQuantizationType.IQ4_NL, "stored as IQ4_NL, which is not supported"),
        (999, "unknown quantization type 999"),
        (GGMLQuantizationType.Q4_K, "can't be Q4_K, whose blocks hold 256"),
    ):
        data[kind_at : kind_at + 4] = struct.pack("<I", kind)
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match=rf"tensor blk\.0\.ffn_up\.weight .*{message}"):
            open_checkpoint(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a GGUF file"),
        (b"PK\x03\x04", "not a GGUF file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(16), "version 1 is not supported"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(16), "version 50331648 is not supported"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 2**60), "truncated"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "architecture None is not supported"),
    ],
)
def test_what_is_no_gguf_file_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(tmp_path / "model.gguf")


def test_a_path_to_nowhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file or folder"):
        open_checkpoint(tmp_path / "model.gguf")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "model.gguf", tiny_model(BLOCKY), "Q8_0")


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_file_cut_anywhere_is_refused(original: Path, data: st.DataObject) -> None:
    content = original.read_bytes()
    cut = original.with_name("cut.gguf")
    cut.write_bytes(content[: data.draw(st.integers(0, len(content) - 33))])
    with pytest.raises(CheckpointError, match=r"cut\.gguf"):
        open_checkpoint(cut)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_damaged_header_is_refused_or_harmless(original: Path, data: st.DataObject) -> None:
    """Never another exception than `CheckpointError`, and never a wait."""
    damaged = bytearray(original.read_bytes())
    header_end = damaged.index(b"output_norm.weight")
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, header_end))] = data.draw(st.integers(0, 255))
    path = original.with_name("damaged.gguf")
    path.write_bytes(damaged)
    with contextlib.suppress(CheckpointError):
        open_checkpoint(path)
