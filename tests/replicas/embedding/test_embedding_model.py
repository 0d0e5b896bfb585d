"""Vectors are those of the reference, whatever is computed beside them."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, BertConfig, BertModel

from replicas.config import EngineConfig
from replicas.embedding.config import EmbeddingConfig
from replicas.embedding.open import open_embedding_model, plan_vectors
from replicas.embedding.pooling import pool
from replicas.loading.errors import CheckpointError
from replicas.text.text_tokenizer import open_text_tokenizer
from tests.support.checkpoints import TINY_CONFIGS, write_tiny

FLOAT32 = EngineConfig(dtype="float32", max_batched_tokens=48, max_running=8, kv_cache_memory=2**22)
SEQUENCES = [[5, 6, 7], [3], list(range(10, 60)), [9, 8, 7], [1, 2, 3, 4, 5, 6, 7]]


@pytest.fixture
def tiny_bert(tmp_path):
    """A folder with a BERT whose every parameter is random, and the oracle."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 80}
    model = BertModel(BertConfig(vocab_size=131, max_position_embeddings=64, **sizes)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_((1.0 if name.endswith("LayerNorm.weight") else 0.0) + 0.2 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path)
    return tmp_path, model


@torch.no_grad()
def reference(model, sequence, pooling):
    hidden_TH = model(torch.tensor([sequence]), output_hidden_states=True).hidden_states[-1][0]
    vector_H = {"mean": hidden_TH.mean(0), "cls": hidden_TH[0], "last": hidden_TH[-1]}[pooling]
    return F.normalize(vector_H, dim=0)


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_an_encoder_equals_transformers(tiny_bert, pooling):
    folder, oracle = tiny_bert
    vectors_SH = open_embedding_model(folder, EmbeddingConfig(FLOAT32, pooling)).embed(SEQUENCES)
    expected_SH = torch.stack([reference(oracle, sequence, pooling) for sequence in SEQUENCES])
    torch.testing.assert_close(vectors_SH, expected_SH, rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", ["llama-gqa", "qwen3", "mistral-window"])
def test_a_decoder_equals_transformers(tmp_path, name):
    write_tiny(tmp_path, TINY_CONFIGS[name])
    oracle = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager").eval()
    for pooling in ("last", "mean"):
        model = open_embedding_model(tmp_path, EmbeddingConfig(FLOAT32, pooling))
        expected_SH = torch.stack([reference(oracle, sequence, pooling) for sequence in SEQUENCES])
        torch.testing.assert_close(model.embed(SEQUENCES), expected_SH, rtol=0, atol=2e-5)


def test_a_sequence_comes_to_the_same_alone_and_in_any_company(tiny_bert):
    model = open_embedding_model(tiny_bert[0], EmbeddingConfig(FLOAT32))
    together_SH = model.embed(SEQUENCES)
    alone_SH = torch.cat([model.embed([sequence]) for sequence in SEQUENCES])
    torch.testing.assert_close(together_SH, alone_SH, rtol=0, atol=1e-6)
    assert torch.equal(model.embed(SEQUENCES[::-1]), together_SH.flip(0))


def test_half_precision_is_near(tiny_bert):
    whole_SH = open_embedding_model(tiny_bert[0], EmbeddingConfig(FLOAT32)).embed(SEQUENCES)
    half_SH = open_embedding_model(tiny_bert[0], EmbeddingConfig(EngineConfig(dtype="bfloat16"))).embed(SEQUENCES)
    assert half_SH.dtype == torch.float32
    assert (half_SH * whole_SH).sum(1).min() > 0.999


def test_no_more_is_computed_at_once_than_allowed_but_for_one_long_sequence(tiny_bert):
    model, batches = open_embedding_model(tiny_bert[0], EmbeddingConfig(FLOAT32)), []
    encoder = model._encoder
    model._encoder = lambda sequences: batches.append(sum(map(len, sequences))) or encoder(sequences)
    model.embed(SEQUENCES)
    assert batches == [14, 50]


def test_vectors_have_length_one():
    vectors_SH = pool(torch.randn(9, 5) * 100, [2, 4, 3], "mean")
    torch.testing.assert_close(vectors_SH.norm(dim=1), torch.ones(3))


class TestMiniLM:
    """The real model of the catalogue."""

    def test_equals_transformers(self, minilm_path):
        torch.set_num_threads(1)
        tokenizer, oracle = open_text_tokenizer(minilm_path), BertModel.from_pretrained(minilm_path).eval()
        texts = ["A cat sits on the mat.", "x", "Interest rates rose again. " * 20]
        sequences = [tokenizer.encode(text, limit=256) for text in texts]
        vectors_SH = open_embedding_model(minilm_path, EmbeddingConfig(EngineConfig())).embed(sequences)
        expected_SH = torch.stack([reference(oracle, sequence, "mean") for sequence in sequences])
        torch.testing.assert_close(vectors_SH, expected_SH, rtol=0, atol=2e-6)

    def test_is_what_its_files_say(self, minilm_path):
        shape = plan_vectors(minilm_path, EmbeddingConfig(EngineConfig()))
        assert (shape.pooling, shape.size, shape.max_model_len, shape.dimensions) == ("mean", 384, 256, ())

    def test_like_texts_are_near(self, minilm_path):
        tokenizer = open_text_tokenizer(minilm_path)
        texts = ["A man is eating food.", "Someone has a meal.", "The stock market fell."]
        cat_SH = open_embedding_model(minilm_path, EmbeddingConfig(EngineConfig())).embed(
            [tokenizer.encode(text) for text in texts]
        )
        near, far = cat_SH[0] @ cat_SH[1], cat_SH[0] @ cat_SH[2]
        assert near > far + 0.4


class TestWhatIsRefused:
    def test_tensors_of_another_shape_and_absent_ones(self, tiny_bert):
        folder, _ = tiny_bert
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 64}))
        with pytest.raises(CheckpointError, match=r"intermediate\.dense\.\w+ has shape"):
            plan_vectors(folder, EmbeddingConfig(FLOAT32))
        (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 4}))
        with pytest.raises(CheckpointError, match=r"tensor encoder\.layer\.3\S+ is missing"):
            plan_vectors(folder, EmbeddingConfig(FLOAT32))

    @pytest.mark.parametrize(
        ("file", "content", "said"),
        [
            ("modules.json", [{"type": "sentence_transformers.models.Dense"}], "the module Dense is not supported"),
            ("1_Pooling/config.json", {"pooling_mode_max_tokens": True}, "pools by pooling_mode_max_tokens"),
            ("sentence_bert_config.json", {"max_seq_length": 0}, "max_seq_length is 0"),
        ],
    )
    def test_vectors_that_are_made_otherwise(self, tiny_bert, file, content, said):
        path = tiny_bert[0] / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))
        with pytest.raises(CheckpointError, match=said):
            plan_vectors(tiny_bert[0], EmbeddingConfig(FLOAT32))

    def test_settings_that_do_not_fit(self, tiny_bert):
        folder, _ = tiny_bert
        with pytest.raises(ValueError, match=r"embedding\.dimensions has 49, but the model's vectors have 48"):
            plan_vectors(folder, EmbeddingConfig(FLOAT32, dimensions=(49,)))
        with pytest.raises(ValueError, match="max_model_len is 65, but this model takes at most 64"):
            plan_vectors(folder, EmbeddingConfig(EngineConfig(max_model_len=65)))
        with pytest.raises(ValueError, match="run on one rank"):
            plan_vectors(folder, EmbeddingConfig(EngineConfig(tensor_parallel=2)))
