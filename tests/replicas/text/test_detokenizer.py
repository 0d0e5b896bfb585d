"""A stream of tokens becomes the same text as the whole of them, however it is cut."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from replicas.text.detokenizer import Detokenizer
from replicas.text.tokenizer import Tokenizer
from tests.support.tokenizers import TEXTS, write_byte_level, write_sentencepiece

VOCAB_SIZE = 500


@pytest.fixture(scope="module")
def byte_level_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_byte_level(tmp_path_factory.mktemp("byte-level"), tags=("<think>",))


@pytest.fixture(scope="module")
def byte_level(byte_level_folder: Path) -> Tokenizer:
    return Tokenizer.open(byte_level_folder)


@pytest.fixture(scope="module")
def byte_level_oracle(byte_level_folder: Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(byte_level_folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def sentencepiece_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sentencepiece(tmp_path_factory.mktemp("sentencepiece"))


@pytest.fixture(scope="module")
def sentencepiece(sentencepiece_folder: Path) -> Tokenizer:
    return Tokenizer.open(sentencepiece_folder)


@pytest.fixture(scope="module")
def sentencepiece_oracle(sentencepiece_folder: Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(sentencepiece_folder / "tokenizer.json"))


def stream(detokenizer: Detokenizer, ids: Sequence[int], size: int = 1) -> list[str]:
    pieces = [detokenizer.push(ids[start : start + size]) for start in range(0, len(ids), size)]
    return [*pieces, detokenizer.finish()]


def cut(ids: list[int], cuts: list[int]) -> list[list[int]]:
    edges = sorted({0, len(ids), *(at % (len(ids) + 1) for at in cuts)})
    return [ids[start:end] for start, end in pairwise(edges)]


class TestAgainstTheTokenizerLibrary:
    @pytest.mark.parametrize("size", [1, 2, 3, 1000])
    @pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
    def test_decodes_real_texts_alike(self, request: pytest.FixtureRequest, kind: str, size: int) -> None:
        tokenizer, oracle = (request.getfixturevalue(name) for name in (kind, f"{kind}_oracle"))
        for text in TEXTS:
            ids = tokenizer.encode(text, add_bos=True, parse_special=False)
            decoded = "".join(stream(Detokenizer(tokenizer), ids, size))
            assert decoded == oracle.decode(ids, skip_special_tokens=True) == text

    @given(ids=st.lists(st.integers(0, VOCAB_SIZE)), cuts=st.lists(st.integers(0, 1000)), skip=st.booleans())
    def test_decodes_any_byte_level_tokens_alike(
        self,
        byte_level: Tokenizer,
        byte_level_oracle: tokenizers.Tokenizer,
        ids: list[int],
        cuts: list[int],
        skip: bool,
    ) -> None:
        detokenizer = Detokenizer(byte_level, skip_special=skip)
        pieces = [detokenizer.push(part) for part in cut(ids, cuts)]
        assert "".join(pieces) + detokenizer.finish() == byte_level_oracle.decode(ids, skip_special_tokens=skip)

    @given(
        ids=st.lists(st.integers(259, 458) | st.integers(0, 2)), cuts=st.lists(st.integers(0, 1000)), skip=st.booleans()
    )
    def test_decodes_any_sentencepiece_words_alike(
        self,
        sentencepiece: Tokenizer,
        sentencepiece_oracle: tokenizers.Tokenizer,
        ids: list[int],
        cuts: list[int],
        skip: bool,
    ) -> None:
        detokenizer = Detokenizer(sentencepiece, skip_special=skip)
        pieces = [detokenizer.push(part) for part in cut(ids, cuts)]
        assert "".join(pieces) + detokenizer.finish() == sentencepiece_oracle.decode(ids, skip_special_tokens=skip)

    @given(text=st.text(), cuts=st.lists(st.integers(0, 1000)))
    def test_decodes_byte_tokens_of_whole_characters_alike(
        self, sentencepiece: Tokenizer, sentencepiece_oracle: tokenizers.Tokenizer, text: str, cuts: list[int]
    ) -> None:
        ids = [byte + 3 for byte in text.encode()]
        detokenizer = Detokenizer(sentencepiece)
        pieces = [detokenizer.push(part) for part in cut(ids, cuts)]
        assert "".join(pieces) + detokenizer.finish() == sentencepiece_oracle.decode(ids) == text.removeprefix(" ")


class TestIncompleteCharacters:
    @given(data=st.binary(), cuts=st.lists(st.integers(0, 1000)))
    def test_no_cut_changes_the_text(self, sentencepiece: Tokenizer, data: bytes, cuts: list[int]) -> None:
        """Also where the bytes are no text: there the library differs, see Detokenizer."""
        ids = [byte + 3 for byte in data]
        detokenizer = Detokenizer(sentencepiece, continues_text=True)
        pieces = [detokenizer.push(part) for part in cut(ids, cuts)]
        assert "".join(pieces) + detokenizer.finish() == data.decode("utf-8", "replace")

    @given(text=st.text())
    def test_nothing_else_is_held_back(self, sentencepiece: Tokenizer, text: str) -> None:
        detokenizer = Detokenizer(sentencepiece, continues_text=True)
        for character in text:
            assert detokenizer.push([byte + 3 for byte in character.encode()]) == character
        assert detokenizer.finish() == ""

    @pytest.mark.parametrize("length", range(1, 4))
    def test_one_that_never_becomes_whole_ends_as_one_replacement(self, sentencepiece: Tokenizer, length: int) -> None:
        ids = [byte + 3 for byte in "a🙂".encode()[: 1 + length]]
        assert stream(Detokenizer(sentencepiece), ids) == ["a", *[""] * length, "\ufffd"]


class TestTheFirstSpace:
    def test_belongs_to_a_sentencepiece_vocabulary(self, sentencepiece: Tokenizer) -> None:
        ids = sentencepiece.encode("a a", add_bos=True, parse_special=False)
        assert "".join(stream(Detokenizer(sentencepiece), ids)) == "a a"

    def test_belongs_to_the_text_that_continues_a_prompt(self, sentencepiece: Tokenizer) -> None:
        ids = sentencepiece.encode("a a", add_bos=False, parse_special=False)
        assert "".join(stream(Detokenizer(sentencepiece, continues_text=True), ids)) == " a a"

    def test_is_kept_by_a_byte_level_vocabulary(self, byte_level: Tokenizer) -> None:
        ids = byte_level.encode(" a", add_bos=False, parse_special=False)
        assert "".join(stream(Detokenizer(byte_level), ids)) == " a"


def test_shows_special_tokens_only_if_asked(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("a<|im_end|><think>b", add_bos=False, parse_special=True)
    assert "".join(stream(Detokenizer(byte_level), ids)) == "a<think>b"
    assert "".join(stream(Detokenizer(byte_level, skip_special=False), ids)) == "a<|im_end|><think>b"


def test_an_id_beyond_the_vocabulary_stands_for_nothing(byte_level: Tokenizer) -> None:
    a = byte_level.token_bytes.index(b"a")
    assert Detokenizer(byte_level).push([a, byte_level.vocab_size, 10**6, a]) == "aa"
