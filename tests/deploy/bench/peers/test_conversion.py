"""A converted model computes what the GGUF file says, and reads text as it does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PreTrainedModel

from deploy.bench.peers.conversion import convert
from deploy.errors import UserError
from replicas.loading.checkpoint import open_checkpoint
from replicas.loading.gguf_file import read_gguf
from replicas.text.tokenizer import Tokenizer
from tests.support.checkpoints import tiny_model
from tests.support.gguf_files import write_gguf
from tests.support.tokenizers import TEXTS, write_byte_level_gguf, write_sentencepiece_gguf

SIZES = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4}


def write_whole_gguf(path: Path, vocabulary: Path) -> PreTrainedModel:
    """A tiny Llama with the vocabulary of another file; the model is the oracle."""
    metadata = {key: value for key, value in read_gguf(vocabulary).metadata.items() if key.startswith("tokenizer.")}
    vocab_size = len(metadata["tokenizer.ggml.tokens"])
    model = tiny_model(LlamaConfig(**SIZES, vocab_size=vocab_size, num_key_value_heads=2, tie_word_embeddings=True))
    write_gguf(path, model, metadata=metadata)
    return model


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> tuple[PreTrainedModel, Path, Path]:
    folder = tmp_path_factory.mktemp("converted")
    oracle = write_whole_gguf(folder / "tiny.gguf", write_byte_level_gguf(folder / "words.gguf", pre="smollm"))
    return oracle, folder / "tiny.gguf", convert(folder / "tiny.gguf", folder / "folder", torch.float32)


@torch.inference_mode()
def test_transformers_computes_the_same(converted: tuple[PreTrainedModel, Path, Path]) -> None:
    oracle, _, folder = converted
    token_ids = torch.tensor([[5, 9, 33, 2, 7, 60, 11]])
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    torch.testing.assert_close(model(token_ids).logits, oracle(token_ids).logits)


def test_transformers_reads_text_as_we_read_it_from_the_file(converted: tuple[PreTrainedModel, Path, Path]) -> None:
    _, file, folder = converted
    ours, theirs = Tokenizer.open(file), AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        assert theirs(text).input_ids == ours.encode(text, add_bos=False, parse_special=True)
    assert theirs.chat_template == ours.chat_template
    assert theirs.eos_token_id in ours.eos_token_ids


def test_we_read_the_folder_as_the_file(converted: tuple[PreTrainedModel, Path, Path]) -> None:
    _, file, folder = converted
    theirs, ours = open_checkpoint(folder).config, open_checkpoint(file).config
    assert theirs.rms_norm_eps == pytest.approx(ours.rms_norm_eps)
    for name in ("architecture", "num_layers", "num_heads", "num_kv_heads", "head_dim", "rope_theta", "max_positions"):
        assert getattr(theirs, name) == getattr(ours, name), name
    assert set(theirs.eos_token_ids) == set(ours.eos_token_ids)


def test_what_cannot_be_converted_is_refused(tmp_path: Path) -> None:
    write_whole_gguf(tmp_path / "spaces.gguf", write_sentencepiece_gguf(tmp_path / "words.gguf"))
    with pytest.raises(UserError, match="byte-level"):
        convert(tmp_path / "spaces.gguf", tmp_path / "folder")
    assert not (tmp_path / "folder").exists()
