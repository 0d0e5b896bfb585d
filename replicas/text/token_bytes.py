"""From the way a vocabulary spells a token to the bytes it stands for. Tokens may end in the middle of a character, so
text exists only for joined bytes."""

from __future__ import annotations

import re

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_NO_BYTE = 0x10FFFF


def _byte_alphabet() -> dict[int, int]:
    """Code point -> byte in GPT-2's spelling: printable Latin-1 characters stand for themselves, the other 68 bytes
    follow from U+0100 on (Radford et al. 2019). Latin-1 code points that spell nothing map beyond any byte."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    table = dict.fromkeys(others, _NO_BYTE)
    table.update({byte: byte for byte in printable})
    table.update({0x100 + index: byte for index, byte in enumerate(others)})
    return table


_BYTE_ALPHABET = _byte_alphabet()


def byte_level_bytes(token: str) -> bytes:
    """The bytes of a token of a byte-level vocabulary; one that leaves the byte alphabet stands for its spelling."""
    try:
        return token.translate(_BYTE_ALPHABET).encode("latin-1")
    except UnicodeEncodeError:
        return token.encode()


def sentencepiece_bytes(token: str) -> bytes:
    """The bytes of a SentencePiece token: `▁` is a space, `<0x0A>` is the byte 0x0A."""
    if byte := _BYTE_TOKEN.fullmatch(token):
        return bytes([int(byte[1], 16)])
    return token.replace("▁", " ").encode()
