"""How much text a token can stand for: what is far too long for a model can be told without tokenizing it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tokenizers

_COMPOSED = 4  # the most characters that Unicode's canonical composition (NFC) makes one of


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """A token stands for at most `characters` characters (None: there is no limit), not counting those that are
    `vanishing`: ASCII characters that the vocabulary has no token for."""

    characters: int | None
    vanishing: tuple[str, ...] = ()

    def fewest_tokens(self, text: str) -> int:
        """A number of tokens that `text` has at the least."""
        if self.characters is None:
            return 0
        return -(-(len(text) - sum(map(text.count, self.vanishing))) // self.characters)


def token_span(backend: tokenizers.Tokenizer, token_bytes: Sequence[bytes]) -> TokenSpan:
    """There is a limit where each character comes down to bytes, which have tokens of their own or make up longer
    ones, and where nothing swallows white space."""
    steps = [*_steps(backend.normalizer), *_steps(backend.pre_tokenizer)]
    in_bytes = any(step["type"] == "ByteLevel" for step in steps) or getattr(backend.model, "byte_fallback", False)
    greedy = any(token.lstrip or token.rstrip for token in backend.get_added_tokens_decoder().values())
    single = {piece for piece in token_bytes if len(piece) == 1}
    beyond_ascii = {bytes([byte]) for byte in range(0x80, 0xC0)}  # one of these is in every other character
    if not in_bytes or greedy or not beyond_ascii <= single or not all(map(_keeps_characters, steps)):
        return TokenSpan(None)
    composed = _COMPOSED if any(step["type"] == "NFC" for step in steps) else 1
    return TokenSpan(
        characters=composed * max(map(len, token_bytes)),
        vanishing=tuple(chr(byte) for byte in range(0x80) if bytes([byte]) not in single),
    )


def _keeps_characters(step: dict[str, Any]) -> bool:
    match step["type"]:
        case "ByteLevel" | "Digits" | "Metaspace" | "NFC" | "Prepend":
            return True
        case "Split":
            return bool(step["behavior"] != "Removed")
        case "Replace":
            return len(step["pattern"].get("String", "")) == len(step["content"])
    return False


def _steps(part: Any) -> list[dict[str, Any]]:
    """A normalizer or pre-tokenizer as a flat list of its serialized steps."""
    if part is None:
        return []
    state: dict[str, Any] = json.loads(part.__getstate__())
    steps: list[dict[str, Any]] = state.get("normalizers") or state.get("pretokenizers") or [state]
    return steps
