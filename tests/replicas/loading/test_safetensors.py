"""Folders as they arrive: whole, sharded, tied, and broken in every way that has a name."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from parallel.mesh import Mesh
from parallel.sharding import Shard, WeightSlot
from replicas.loading.checkpoint import load_model, open_checkpoint, resolve_dtype
from replicas.loading.errors import CheckpointError
from tests.support.checkpoints import TINY_CONFIGS, write_tiny
from tests.support.paged import chunked_logits

CPU = torch.device("cpu")
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
Q_PROJ = "model.layers.0.self_attn.q_proj.weight"
EMBEDDING = "model.embed_tokens.weight"
TOKENS = [3, 14, 15, 92, 65]


def logits(folder: Path) -> torch.Tensor:
    return chunked_logits(load_model(open_checkpoint(folder), Mesh(), torch.float32, CPU), TOKENS, chunk=5)


def change(folder: Path, **tensors: torch.Tensor | None) -> None:
    """Replace, add or (None) remove tensors of a single-file checkpoint."""
    kept = {name: tensor for name, tensor in {**load_file(folder / SINGLE), **tensors}.items() if tensor is not None}
    save_file(kept, folder / SINGLE)


def edit_json(path: Path, edit: Callable[[dict[str, object]], None]) -> None:
    values = json.loads(path.read_text())
    edit(values)
    path.write_text(json.dumps(values))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tiny(tmp_path, TINY_CONFIGS["llama-gqa"])
    return tmp_path


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    write_tiny(tmp_path, TINY_CONFIGS["llama-gqa"], max_shard_size="60KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    return tmp_path


def shard_of(folder: Path, name: str) -> Path:
    return folder / json.loads((folder / INDEX).read_text())["weight_map"][name]


def test_shards_give_the_same_model(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("sharded")
    write_tiny(other, TINY_CONFIGS["llama-gqa"], max_shard_size="60KB")
    assert torch.equal(logits(folder), logits(other))


def test_the_shard_that_an_index_belongs_to_may_be_read_in_slices(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    full = load_file(folder / SINGLE)[Q_PROJ]
    for shard in (None, Shard(0, 12, 36), Shard(1, 5, 9)):
        expected = full if shard is None else full.narrow(shard.dim, shard.start, shard.stop - shard.start)
        target = torch.empty(expected.shape)
        checkpoint.read_into(Q_PROJ, WeightSlot(target, tuple(full.shape), shard))
        assert torch.equal(target, expected)


class TestHead:
    """B66: tied or not, with a head in the file or not."""

    def test_a_tied_model_uses_its_embedding_whatever_head_the_file_holds(self, tmp_path: Path) -> None:
        write_tiny(tmp_path, TINY_CONFIGS["llama-tied"])
        without_head = logits(tmp_path)
        change(tmp_path, **{"lm_head.weight": torch.randn(load_file(tmp_path / SINGLE)[EMBEDDING].shape)})
        assert torch.equal(logits(tmp_path), without_head)

    def test_a_separate_head_is_used(self, folder: Path) -> None:
        with_head = logits(folder)
        change(folder, **{"lm_head.weight": torch.zeros(131, 48)})
        assert with_head.abs().max() > 0
        assert logits(folder).abs().max() == 0

    def test_an_untied_model_without_head_is_refused(self, folder: Path) -> None:
        change(folder, **{"lm_head.weight": None})
        with pytest.raises(CheckpointError, match=r"tensor lm_head\.weight is missing"):
            open_checkpoint(folder)


def test_precomputed_rotary_frequencies_are_ignored(folder: Path) -> None:
    change(folder, **{"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(6)})
    open_checkpoint(folder)


@pytest.mark.parametrize("stored", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_dtypes_are_converted(folder: Path, stored: torch.dtype) -> None:
    weights = {name: tensor.to(stored) for name, tensor in load_file(folder / SINGLE).items()}
    save_file(weights, folder / SINGLE)
    model = load_model(open_checkpoint(folder), Mesh(), torch.bfloat16, CPU)
    embedding = weights[EMBEDDING].to(torch.bfloat16)
    assert torch.equal(model.embedding.weight.part(0, len(embedding)), embedding)


def test_auto_dtype_is_float32_on_cpus_and_the_files_own_elsewhere(folder: Path) -> None:
    edit_json(folder / "config.json", lambda config: config.update(dtype="float16"))
    config = open_checkpoint(folder).config
    assert resolve_dtype("auto", config, CPU) == torch.float32
    assert resolve_dtype("auto", config, torch.device("cuda")) == torch.float16
    assert resolve_dtype("bfloat16", config, CPU) == torch.bfloat16


def test_auto_dtype_is_bfloat16_on_cpus_that_are_fast_at_it(folder: Path) -> None:
    edit_json(folder / "config.json", lambda config: config.update(dtype="float16"))
    assert resolve_dtype("auto", open_checkpoint(folder).config, CPU, fast_bfloat16=True) == torch.bfloat16
    edit_json(folder / "config.json", lambda config: config.update(dtype="float32"))
    assert resolve_dtype("auto", open_checkpoint(folder).config, CPU, fast_bfloat16=True) == torch.float32


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def lfs_pointer(path: Path) -> None:
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")


SINGLE_FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing": (lambda f: change(f, **{Q_PROJ: None}), rf"tensor {Q_PROJ} is missing"),
    "several missing": (
        lambda f: change(f, **{Q_PROJ: None, "model.norm.weight": None}),
        rf"tensor {Q_PROJ} is missing, as are model\.norm\.weight",
    ),
    "surplus": (lambda f: change(f, extra=torch.ones(2)), r"tensor extra has no place in LlamaForCausalLM"),
    "surplus bias": (
        lambda f: change(f, **{Q_PROJ.replace("weight", "bias"): torch.ones(48)}),
        r"tensor model\.layers\.0\.self_attn\.q_proj\.bias has no place",
    ),
    "surplus layer": (
        lambda f: change(f, **{"model.layers.2.mlp.up_proj.weight": torch.ones(80, 48)}),
        r"tensor model\.layers\.2\.mlp\.up_proj\.weight has no place",
    ),
    "wrong shape": (
        lambda f: change(f, **{Q_PROJ: torch.ones(48, 47)}),
        rf"tensor {Q_PROJ} has shape \(48, 47\), but the configuration needs \(48, 48\)",
    ),
    "transposed": (
        lambda f: change(f, **{"model.layers.1.mlp.up_proj.weight": torch.ones(48, 80)}),
        r"mlp\.up_proj\.weight has shape \(48, 80\)",
    ),
    "quantized dtype": (
        lambda f: change(f, **{Q_PROJ: torch.ones(48, 48, dtype=torch.int8)}),
        rf"tensor {Q_PROJ} is stored as I8, which is not supported",
    ),
    "truncated": (lambda f: truncate(f / SINGLE), r"truncated: tensor \S+ ends beyond the end"),
    "bytes behind": (
        lambda f: (f / SINGLE).write_bytes((f / SINGLE).read_bytes() + b"x") and None,
        "1 bytes follow the last tensor",
    ),
    "empty": (lambda f: (f / SINGLE).write_bytes(b"") and None, "truncated within its header"),
    "not safetensors": (lambda f: (f / SINGLE).write_bytes(b"PK" * 999) and None, "truncated within its header"),
    "garbage header": (
        lambda f: (f / SINGLE).write_bytes(b"\x04\0\0\0\0\0\0\0abcd") and None,
        "header is not valid JSON",
    ),
    "LFS pointer": (lambda f: lfs_pointer(f / SINGLE), "a Git LFS pointer"),
    "LFS config": (lambda f: lfs_pointer(f / "config.json"), r"config\.json: a Git LFS pointer"),
    "no weights": (lambda f: (f / SINGLE).unlink(), "holds neither model.safetensors nor"),
    "no config": (lambda f: (f / "config.json").unlink(), r"config\.json: no such file"),
    "heads do not divide": (
        lambda f: edit_json(f / "config.json", lambda config: config.update(num_key_value_heads=3)),
        "4 query heads can't share 3 KV heads",
    ),
}


@pytest.mark.parametrize("fault", SINGLE_FAULTS)
def test_a_broken_file_is_refused_by_name(fault: str, folder: Path) -> None:
    spoil, message = SINGLE_FAULTS[fault]
    spoil(folder)
    with pytest.raises(CheckpointError, match=message) as refusal:
        open_checkpoint(folder)
    assert str(folder) in str(refusal.value)


class TestIndex:
    def test_a_missing_shard(self, sharded: Path) -> None:
        shard = shard_of(sharded, Q_PROJ)
        shard.unlink()
        with pytest.raises(CheckpointError, match=rf"{shard.name}: no such file"):
            open_checkpoint(sharded)

    def test_a_shard_that_is_a_pointer(self, sharded: Path) -> None:
        shard = shard_of(sharded, Q_PROJ)
        lfs_pointer(shard)
        with pytest.raises(CheckpointError, match=rf"{shard.name}: a Git LFS pointer"):
            open_checkpoint(sharded)

    def test_a_truncated_shard(self, sharded: Path) -> None:
        truncate(shard_of(sharded, Q_PROJ))
        with pytest.raises(CheckpointError, match=rf"{shard_of(sharded, Q_PROJ).name}: truncated: tensor"):
            open_checkpoint(sharded)

    def test_a_tensor_that_its_shard_lacks(self, sharded: Path) -> None:
        shard = shard_of(sharded, Q_PROJ)
        weights = load_file(shard)
        weights.pop(Q_PROJ)
        save_file(weights, shard)
        with pytest.raises(CheckpointError, match=rf"{shard.name}: tensor {Q_PROJ} is missing, although {INDEX}"):
            open_checkpoint(sharded)

    def test_a_tensor_that_the_index_does_not_know(self, sharded: Path) -> None:
        edit_json(sharded / INDEX, lambda index: index["weight_map"].pop(Q_PROJ))  # type: ignore[attr-defined]
        with pytest.raises(CheckpointError, match=rf"tensor {Q_PROJ} is here, although {INDEX} does not say so"):
            open_checkpoint(sharded)

    @pytest.mark.parametrize("place", ["../model.safetensors", "/etc/passwd", 3, None])
    def test_a_place_outside_the_folder(self, place: object, sharded: Path) -> None:
        edit_json(sharded / INDEX, lambda index: index["weight_map"].update({Q_PROJ: place}))  # type: ignore[attr-defined]
        with pytest.raises(CheckpointError, match=rf"{INDEX}: weight_map places {Q_PROJ} in"):
            open_checkpoint(sharded)

    @pytest.mark.parametrize("content", ["", "[]", "{}", '{"weight_map": {}}', '{"weight_map": []}'])
    def test_a_broken_index(self, content: str, sharded: Path) -> None:
        (sharded / INDEX).write_text(content)
        with pytest.raises(CheckpointError, match=INDEX):
            open_checkpoint(sharded)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scratch")
    write_tiny(folder, TINY_CONFIGS["llama-gqa"])
    (folder / "original").write_bytes((folder / SINGLE).read_bytes())
    return folder


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_file_cut_anywhere_is_refused(scratch: Path, data: st.DataObject) -> None:
    original = (scratch / "original").read_bytes()
    (scratch / SINGLE).write_bytes(original[: data.draw(st.integers(0, len(original) - 1))])
    with pytest.raises(CheckpointError, match=SINGLE):
        open_checkpoint(scratch)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_damaged_header_is_refused_or_harmless(scratch: Path, data: st.DataObject) -> None:
    """Never another exception than `CheckpointError`."""
    damaged = bytearray((scratch / "original").read_bytes())
    header_end = 8 + int.from_bytes(damaged[:8], "little")
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, header_end - 1))] = data.draw(st.integers(0, 255))
    (scratch / SINGLE).write_bytes(damaged)
    with contextlib.suppress(CheckpointError):
        load_model(open_checkpoint(scratch), Mesh(), torch.float32, CPU)
