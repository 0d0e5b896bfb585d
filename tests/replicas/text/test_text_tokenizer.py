"""One text is one sequence, with what its model wants around it and nothing that the text itself could forge."""

from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerFast

from replicas.text.text_tokenizer import open_text_tokenizer
from replicas.text.tokenizer import TooManyTokens

CLS, SEP = 101, 102


@pytest.fixture(scope="module")
def minilm(minilm_path):
    return open_text_tokenizer(minilm_path)


def test_ids_are_those_of_transformers(minilm, minilm_path):
    oracle = PreTrainedTokenizerFast(tokenizer_file=str(minilm_path / "tokenizer.json"))
    for text in ("Hello, World!", "", "naïve 東京 🙂", "a" * 300):
        assert minilm.encode(text) == oracle.encode(text, truncation=False, padding=False)


def test_a_text_cannot_spell_special_tokens(minilm):
    assert minilm.encode("[SEP] [PAD]").count(SEP) == 1


def test_too_long_texts_are_refused_or_lose_their_end(minilm):
    with pytest.raises(TooManyTokens, match="at least 12 tokens, but may have at most 8"):
        minilm.encode("cat " * 10, limit=8)
    whole, kept = minilm.encode("one two three four five six"), minilm.encode("one two three four five six", keep=5)
    assert kept == [*whole[:4], SEP]
    assert minilm.encode("one two three", keep=2, add_special=False) == whole[1:3]


def test_back_to_text(minilm):
    ids = minilm.encode("Hello world")
    assert minilm.decode(ids) == "[CLS] hello world [SEP]"
    assert [minilm.spelling(token_id) for token_id in ids] == ["[CLS]", "hello", "world", "[SEP]"]
    assert minilm.spelling(10**6) == ""


def test_a_decoders_text(smollm2_path):
    decoder = open_text_tokenizer(smollm2_path)
    ids = decoder.encode("Hello <|im_end|>")
    assert 2 not in ids
    assert decoder.decode(ids) == "Hello <|im_end|>"
    assert decoder.encode("Hello there", keep=1) == ids[:1]


def test_half_a_surrogate_pair(minilm):
    with pytest.raises(ValueError, match="surrogate"):
        minilm.encode("\ud800")
