"""A Hugging Face folder gives the ids that transformers gives."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from replicas.text.tokenizer import Tokenizer
from tests.support.tokenizers import CHATML, TEXTS, write_byte_level, write_sentencepiece

KINDS: dict[str, Callable[[Path], Path]] = {
    "byte-level": write_byte_level,
    "byte-level with BOS": lambda folder: write_byte_level(folder, bos=True),
    "byte-level with tags": lambda folder: write_byte_level(folder, tags=("<think>", "</think>", "<b>", "    ")),
    "sentencepiece": write_sentencepiece,
    "sentencepiece without BOS": lambda folder: write_sentencepiece(folder, bos=False),
    "sentencepiece, prefix space first only": lambda folder: write_sentencepiece(folder, first_only=True),
}


@pytest.fixture(params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return KINDS[request.param](tmp_path / "model")


@pytest.fixture
def oracle(folder: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(folder)


def test_gives_the_ids_of_transformers(folder: Path, oracle: PreTrainedTokenizerFast) -> None:
    tokenizer = Tokenizer.open(folder)
    for text in TEXTS:
        assert (
            tokenizer.encode(text, add_bos=False, parse_special=True)
            == oracle(text, add_special_tokens=False).input_ids
        )
        assert tokenizer.encode(text, add_bos=tokenizer.add_bos, parse_special=False) == oracle(text).input_ids


def test_parses_special_tokens_as_transformers_does(folder: Path, oracle: PreTrainedTokenizerFast) -> None:
    tokenizer = Tokenizer.open(folder)
    specials = [*oracle.all_special_tokens, "<think>", "<b>"]
    for before, after in pairwise(TEXTS):
        for special in specials:
            text = before + special + after + special + special
            assert (
                tokenizer.encode(text, add_bos=False, parse_special=True)
                == oracle(text, add_special_tokens=False).input_ids
            )


def test_joins_token_bytes_to_what_transformers_decodes(folder: Path, oracle: PreTrainedTokenizerFast) -> None:
    tokenizer = Tokenizer.open(folder)
    assert tokenizer.vocab_size == len(oracle)
    for text in TEXTS:
        ids = tokenizer.encode(text, add_bos=False, parse_special=True)
        joined = b"".join(tokenizer.token_bytes[token] for token in ids)
        prefix = b" " * (tokenizer.strip_leading_space and text != "")
        assert joined.removeprefix(prefix) == oracle.decode(ids).encode()


def test_reads_the_names_of_special_tokens(folder: Path, oracle: PreTrainedTokenizerFast) -> None:
    tokenizer = Tokenizer.open(folder)
    assert tokenizer.bos_token_id == oracle.bos_token_id
    assert tokenizer.eos_token_ids == (oracle.eos_token_id,)
    assert tokenizer.special_tokens_map == oracle.special_tokens_map
    assert tokenizer.chat_template == oracle.chat_template
    assert tokenizer.add_bos == (oracle("").input_ids == [oracle.bos_token_id])


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, (2,)),
        ({"generation_config.json": {"eos_token_id": 0}}, (0, 2)),
        ({"generation_config.json": {"eos_token_id": [1, 2]}, "config.json": {"eos_token_id": 7}}, (1, 2)),
        ({"generation_config.json": {}, "config.json": {"eos_token_id": 1}}, (1, 2)),
    ],
)
def test_ends_on_every_end_token_that_a_file_names(
    tmp_path: Path, files: dict[str, dict[str, Any]], expected: tuple[int, ...]
) -> None:
    folder = write_byte_level(tmp_path)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    assert Tokenizer.open(folder).eos_token_ids == expected


def test_takes_the_template_file_before_the_configuration(tmp_path: Path) -> None:
    folder = write_byte_level(tmp_path, chat_template=CHATML)
    (folder / "chat_template.jinja").write_text("from the file")
    assert Tokenizer.open(folder).chat_template == "from the file"


def test_takes_the_default_of_several_templates(tmp_path: Path) -> None:
    templates: Any = [{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}]
    assert Tokenizer.open(write_byte_level(tmp_path, chat_template=templates)).chat_template == "b"


def test_makes_a_word_special_that_the_configuration_names(tmp_path: Path) -> None:
    folder = write_byte_level(tmp_path)
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    word = backend.token_to_id("the")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"pad_token": {"content": "the"}}))
    tokenizer = Tokenizer.open(folder)
    assert word in tokenizer.special_ids
    assert word not in tokenizer.encode("the", add_bos=False, parse_special=False)


def test_does_not_truncate_or_pad_even_if_the_file_says_so(tmp_path: Path) -> None:
    folder = write_byte_level(tmp_path)
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    expected = backend.encode(TEXTS[3]).ids
    backend.enable_truncation(4)
    backend.enable_padding(length=100)
    backend.save(str(folder / "tokenizer.json"))
    assert Tokenizer.open(folder).encode(TEXTS[3], add_bos=False, parse_special=False) == expected


def test_gives_a_special_token_the_white_space_that_its_flags_claim(tmp_path: Path) -> None:
    folder = write_byte_level(tmp_path)
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    backend.add_special_tokens(
        [
            AddedToken("<|left|>", lstrip=True, normalized=False),
            AddedToken("<|right|>", rstrip=True, normalized=False),
            AddedToken("<|word|>", single_word=True, normalized=False),
        ]
    )
    backend.save(str(folder / "tokenizer.json"))
    tokenizer = Tokenizer.open(folder)
    for special in ("<|left|>", "<|right|>", "<|word|>"):
        for text in (f"a \n {special} \n b", f"a{special}b", f" {special}{special} "):
            assert tokenizer.encode(text, add_bos=False, parse_special=True) == backend.encode(text).ids


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", None, "has no tokenizer.json"),
        ("tokenizer.json", "version https://git-lfs.github.com/spec/v1", "tokenizer.json cannot be read"),
        ("tokenizer.json", '{"version": "1.0"}', "tokenizer.json cannot be read"),
        ("tokenizer_config.json", '{"bos_token": ', "tokenizer_config.json is not valid JSON"),
        ("generation_config.json", "[]", "generation_config.json holds a list, but must hold an object"),
    ],
)
def test_names_the_file_that_is_wrong(tmp_path: Path, name: str, content: str | None, message: str) -> None:
    folder = write_byte_level(tmp_path)
    (folder / name).unlink(missing_ok=True)
    if content is not None:
        (folder / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        Tokenizer.open(folder)


def test_refuses_a_vocabulary_that_is_neither_byte_level_nor_sentencepiece(tmp_path: Path) -> None:
    folder = write_byte_level(tmp_path)
    content = json.loads((folder / "tokenizer.json").read_text()) | {"decoder": {"type": "BPEDecoder", "suffix": "_"}}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"tokenizer\.json decodes by \['BPEDecoder'\]"):
        Tokenizer.open(folder)
