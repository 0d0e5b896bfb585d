"""What holds for every tokenizer, whatever files it came from."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, pre_tokenizers
from tokenizers.models import BPE

from replicas.text.control_tokens import ControlTokens
from replicas.text.tokenizer import Tokenizer, TooManyTokens
from tests.support.tokenizers import (
    CHATML_SPECIALS,
    SENTENCEPIECE_SPECIALS,
    TEXTS,
    write_byte_level,
    write_byte_level_gguf,
    write_sentencepiece,
)

TAGS = ("<think>", "</think>")


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.open(
        write_byte_level(tmp_path_factory.mktemp("byte-level"), bos=True, tags=TAGS, chat_template="{{ '<think>' }}")
    )


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.open(write_sentencepiece(tmp_path_factory.mktemp("sentencepiece")))


@pytest.fixture(params=["byte_level", "sentencepiece"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    opened: Tokenizer = request.getfixturevalue(request.param)
    return opened


fragments = st.lists(
    st.sampled_from([*CHATML_SPECIALS, *SENTENCEPIECE_SPECIALS, *TAGS, *TEXTS, "<", "|im", "_end|>", "s>"])
    | st.text(max_size=5)
).map("".join)


class TestPlainText:
    @given(text=fragments)
    def test_never_yields_a_special_token(self, byte_level: Tokenizer, sentencepiece: Tokenizer, text: str) -> None:
        for tokenizer in (byte_level, sentencepiece):
            ids = tokenizer.encode(text, add_bos=False, parse_special=False)
            assert not tokenizer.special_ids & set(ids)

    @given(text=fragments)
    def test_comes_back_from_its_tokens(self, byte_level: Tokenizer, sentencepiece: Tokenizer, text: str) -> None:
        for tokenizer in (byte_level, sentencepiece):
            ids = tokenizer.encode(text, add_bos=False, parse_special=False)
            prefix = " " if tokenizer.strip_leading_space and text else ""
            assert b"".join(tokenizer.token_bytes[token] for token in ids) == (prefix + text).encode()

    def test_does_not_even_yield_a_tag_that_the_chat_template_writes(self, byte_level: Tokenizer) -> None:
        written, unwritten = (byte_level.token_bytes.index(tag.encode()) for tag in TAGS)
        ids = byte_level.encode("".join(TAGS), add_bos=False, parse_special=False)
        assert written not in ids
        assert unwritten in ids
        assert not {written, unwritten} & byte_level.special_ids

    def test_does_not_reach_a_special_token_by_merging(self, tmp_path: Path) -> None:
        """In Llama-2's vocabulary `</s>` is the merge of two words, as is any word that a file names as special."""
        folder = write_byte_level(tmp_path)
        backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        config = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(json.dumps(config | {"pad_token": "the"}))
        the = backend.token_to_id("the")
        assert the in backend.encode("the").ids
        tokenizer = Tokenizer.open(folder)
        spelled = [backend.token_to_id(character) for character in "the"]
        assert tokenizer.encode("the", add_bos=False, parse_special=False) == spelled
        assert tokenizer.encode("the", add_bos=False, parse_special=True) == [the]

    def test_is_refused_if_it_holds_half_a_character(self, tokenizer: Tokenizer) -> None:
        with pytest.raises(ValueError, match="half of a surrogate pair"):
            tokenizer.encode("a\ud83d", add_bos=False, parse_special=False)


class TestBos:
    @pytest.mark.parametrize("text", ["", "hello"])
    def test_stands_first_exactly_once(self, tokenizer: Tokenizer, text: str) -> None:
        bos = tokenizer.bos_token_id
        assert bos is not None
        bare = tokenizer.encode(text, add_bos=False, parse_special=True)
        assert bare[:1] != [bos]
        assert tokenizer.encode(text, add_bos=True, parse_special=True) == [bos, *bare]
        written = tokenizer.token_bytes[bos].decode() + text
        assert tokenizer.encode(written, add_bos=True, parse_special=True).count(bos) == 1

    def test_is_not_added_where_the_vocabulary_has_none(self, tmp_path: Path) -> None:
        folder = write_byte_level(tmp_path)
        config = json.loads((folder / "tokenizer_config.json").read_text())
        del config["bos_token"]
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        tokenizer = Tokenizer.open(folder)
        assert not tokenizer.add_bos
        assert tokenizer.encode("", add_bos=True, parse_special=True) == []


SPELLINGS = ("<s>", "</s>", "<|a|>", "<|ab|>", "<|a", "aa", "aaa", "é<", "[A]", "]")


@pytest.fixture(scope="module")
def backend() -> tokenizers.Tokenizer:
    alphabet = {character: index for index, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = tokenizers.Tokenizer(BPE(vocab=alphabet, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in SPELLINGS])
    return backend


class TestControlTokens:
    @given(text=st.lists(st.sampled_from([*SPELLINGS, "a", "b", "<", "|", ">", " ", "é", "[", "A"])).map("".join))
    def test_are_found_where_the_tokenizer_library_finds_them(self, backend: tokenizers.Tokenizer, text: str) -> None:
        control = ControlTokens(backend.get_added_tokens_decoder(), chat_template=None)
        expected = [token for token in backend.encode(text).ids if token in control.tokens]
        segments = control.split(text)
        assert [segment for segment in segments if isinstance(segment, int)] == expected
        spelled = [segment if isinstance(segment, str) else control.tokens[segment].content for segment in segments]
        assert "".join(spelled) == text

    def test_may_be_none(self) -> None:
        assert ControlTokens({}, chat_template=None).split("a<s>") == ["a<s>"]


class TestLength:
    """A text that cannot fit is refused by its length; one that fits never is, whatever characters it has."""

    @given(
        text=fragments
        | st.text()
        | st.sampled_from(["\x04", " ", "a", "e\u0301", "\u1112\u1161\u11ab"]).map(lambda character: character * 400)
    )
    def test_never_refuses_what_fits(self, byte_level: Tokenizer, sentencepiece: Tokenizer, text: str) -> None:
        for tokenizer in (byte_level, sentencepiece):
            ids = tokenizer.encode(text, add_bos=False, parse_special=True)
            assert tokenizer.encode(text, add_bos=False, parse_special=True, limit=len(ids)) == ids

    @pytest.mark.parametrize("text", ["word ", "\x04", " ", "\U0010ffff", "<|endoftext|>"])
    def test_never_refuses_what_fits_smollm2(self, smollm2_path: Path, text: str) -> None:
        """Its vocabulary has no token for some control characters."""
        tokenizer = Tokenizer.open(smollm2_path)
        ids = tokenizer.encode(text * 300, add_bos=False, parse_special=True)
        assert tokenizer.encode(text * 300, add_bos=False, parse_special=True, limit=len(ids)) == ids

    def test_composed_characters_count_as_one(self, tmp_path: Path) -> None:
        tokenizer = Tokenizer.open(write_byte_level_gguf(tmp_path / "m.gguf", pre="qwen2"))
        for text in ("\u1112\u1161\u11ab" * 100, "\u03b1\u0313\u0300\u0345" * 100):
            ids = tokenizer.encode(text, add_bos=False, parse_special=True)
            assert tokenizer.encode(text, add_bos=False, parse_special=True, limit=len(ids)) == ids

    def test_refuses_what_cannot_fit_with_a_number_that_is_true(self, tokenizer: Tokenizer) -> None:
        text = "hello world " * 10_000
        with pytest.raises(TooManyTokens, match="at least") as refusal:
            tokenizer.encode(text, add_bos=False, parse_special=False, limit=16)
        assert 16 < refusal.value.at_least <= len(tokenizer.encode(text, add_bos=False, parse_special=False))

    def test_has_no_bound_where_a_token_swallows_white_space(self, tmp_path: Path) -> None:
        folder = write_byte_level(tmp_path)
        path = folder / "tokenizer.json"
        content = json.loads(path.read_text())
        content["added_tokens"][0]["rstrip"] = True
        path.write_text(json.dumps(content))
        tokenizer = Tokenizer.open(folder)
        text = content["added_tokens"][0]["content"] + " " * 100_000
        assert len(tokenizer.encode(text, add_bos=False, parse_special=True, limit=1)) == 1


def test_other_threads_run_while_a_long_text_is_encoded(smollm2_path: Path) -> None:
    tokenizer, longest = Tokenizer.open(smollm2_path), 0.0
    work = threading.Thread(
        target=lambda: tokenizer.encode("some words " * 100_000, add_bos=False, parse_special=False)
    )
    started = last = time.perf_counter()
    work.start()
    while work.is_alive():
        time.sleep(0.001)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    assert longest < (last - started) / 2, "the library held the interpreter lock throughout"


def test_visible_bytes_hide_special_tokens_alone(byte_level: Tokenizer) -> None:
    for index, piece in enumerate(byte_level.token_bytes):
        assert byte_level.visible_bytes[index] == (b"" if index in byte_level.special_ids else piece)


@pytest.mark.parametrize("name", ["model.bin", "absent"])
def test_refuses_a_path_that_is_no_model(tmp_path: Path, name: str) -> None:
    (tmp_path / "model.bin").touch()
    with pytest.raises(ValueError, match=rf"{name} is neither a folder nor a \.gguf file"):
        Tokenizer.open(tmp_path / name)


def test_a_process_that_encodes_text_imports_neither_torch_nor_transformers() -> None:
    code = """if True:
        import sys
        import replicas.text.tokenizer, replicas.text.detokenizer, replicas.text.stops
        print({"torch", "transformers"} & sys.modules.keys())
        import replicas.text.chat
        print({"torch"} & sys.modules.keys())
    """
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\nset()\n"
