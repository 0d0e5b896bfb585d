"""Texts to tokens for models that make vectors: one text becomes one sequence, with the tokens around it that its
model was trained with, such as `[CLS] text [SEP]`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import tokenizers

from replicas.text.detokenizer import Detokenizer
from replicas.text.tokenizer import Tokenizer, TooManyTokens


class TextTokenizer(Protocol):
    """Immutable, so threads may share it. The spelling of a special token in a text is text like any other."""

    def encode(
        self, text: str, *, add_special: bool = True, limit: int | None = None, keep: int | None = None
    ) -> list[int]:
        """Of a text that comes to more than `keep` tokens, the end is left out. Raises TooManyTokens for more than
        `limit` tokens, and ValueError for what is no text."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Special tokens too."""

    def spelling(self, token_id: int) -> str:
        """As the vocabulary itself writes the token; empty for an id without one."""


def open_text_tokenizer(path: Path) -> TextTokenizer:
    """Of a folder, its tokenizer.json says what stands around a text. Raises ValueError that names the file."""
    return FolderTokenizer.open(path) if path.is_dir() else BosTokenizer(Tokenizer.open(path))


class FolderTokenizer:
    """A tokenizer.json as it is."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = True
        self._backend = backend
        self._num_around = backend.num_special_tokens_to_add(is_pair=False)

    @classmethod
    def open(cls, folder: Path) -> FolderTokenizer:
        """Raises ValueError that names the file."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ValueError(f"{folder} has no tokenizer.json")
        try:
            return cls(tokenizers.Tokenizer.from_file(str(path)))
        except Exception as error:  # the library raises plain Exception
            raise ValueError(f"{path} cannot be read: {error}") from error

    def encode(
        self, text: str, *, add_special: bool = True, limit: int | None = None, keep: int | None = None
    ) -> list[int]:
        try:
            encoding = self._backend.encode_batch([text], add_special_tokens=False)[0]
        except TypeError:  # the library's answer to a str that has no UTF-8 form
            raise ValueError("the text holds half of a surrogate pair, which is not a character") from None
        num_around = self._num_around if add_special else 0
        if keep is not None:
            encoding.truncate(max(0, keep - num_around))
        if limit is not None and len(encoding) + num_around > limit:
            raise TooManyTokens(len(encoding) + num_around, limit)
        ids: list[int] = (self._backend.post_process(encoding) if add_special else encoding).ids
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self._backend.decode(list(token_ids), skip_special_tokens=False))

    def spelling(self, token_id: int) -> str:
        return self._backend.id_to_token(token_id) or ""


class BosTokenizer:
    """A decoder's vocabulary: nothing but BOS stands before a text, if the model wants one."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(
        self, text: str, *, add_special: bool = True, limit: int | None = None, keep: int | None = None
    ) -> list[int]:
        add_bos = add_special and self._tokenizer.add_bos
        ids = self._tokenizer.encode(text, add_bos=add_bos, parse_special=False, limit=None if keep else limit)[:keep]
        if limit is not None and len(ids) > limit:
            raise TooManyTokens(len(ids), limit)
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        detokenizer = Detokenizer(self._tokenizer, skip_special=False)
        return detokenizer.push(token_ids) + detokenizer.finish()

    def spelling(self, token_id: int) -> str:
        return self._tokenizer.spelling(token_id)
