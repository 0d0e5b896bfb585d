"""Each token stands for exact bytes, whatever its vocabulary's way to spell them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from replicas.text.token_bytes import byte_level_bytes, sentencepiece_bytes


@given(text=st.text())
def test_byte_level_spelling_is_undone(text: str) -> None:
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    spelled = "".join(piece for piece, _ in spell.pre_tokenize_str(text))
    assert byte_level_bytes(spelled) == text.encode()


def test_every_byte_has_one_letter() -> None:
    assert sorted(map(byte_level_bytes, pre_tokenizers.ByteLevel.alphabet())) == [bytes([byte]) for byte in range(256)]


@pytest.mark.parametrize("token", ["a b", "<|｜|>", "é\xa0", "\xad", "🙂", ""])
def test_a_token_outside_the_byte_alphabet_stands_for_its_spelling(token: str) -> None:
    assert byte_level_bytes(token) == token.encode()


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        ("▁the", b" the"),
        ("▁▁", b"  "),
        ("é", b"\xc3\xa9"),
        ("<0x0A>", b"\n"),
        ("<0xfF>", b"\xff"),
        ("<0x0A>▁", b"<0x0A> "),
    ],
)
def test_sentencepiece_spelling_is_undone(token: str, expected: bytes) -> None:
    assert sentencepiece_bytes(token) == expected
