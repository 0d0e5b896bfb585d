"""Text to token ids, and what each id stands for. Built on the `tokenizers` library directly: importing transformers
would cost a start more than everything here."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import tokenizers
from tokenizers import AddedToken

from replicas.text.control_tokens import ControlTokens, Segment
from replicas.text.folder_tokenizer import open_folder_tokenizer
from replicas.text.gguf_tokenizer import open_gguf_tokenizer
from replicas.text.token_span import token_span
from replicas.text.vocabulary import Vocabulary

# Texts are encoded one at a time: the library need not start a thread for each core.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


class TooManyTokens(ValueError):
    """A text has at least `at_least` tokens, which is more than was allowed."""

    def __init__(self, at_least: int, limit: int) -> None:
        super().__init__(f"the text has at least {at_least} tokens, but may have at most {limit}")
        self.at_least = at_least


class Tokenizer:
    """The vocabulary of one model. Immutable, so threads may share it.

    `token_bytes[i]` are the exact bytes of token i: decoding is joining them. Special tokens have their spelling
    there, and nothing in `visible_bytes`. `add_bos` says whether a bare completion prompt begins with BOS.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        added = vocabulary.backend.get_added_tokens_decoder()
        self.special_ids = frozenset(index for index, token in added.items() if token.special)
        self.control_tokens = ControlTokens(added, vocabulary.chat_template)
        self.token_bytes = vocabulary.token_bytes
        self.visible_bytes = [
            b"" if index in self.special_ids else piece for index, piece in enumerate(vocabulary.token_bytes)
        ]
        self._pieces: dict[frozenset[int], list[bytes]] = {}
        self.vocab_size = len(vocabulary.token_bytes)
        self.bos_token_id = vocabulary.bos_token_id
        self.eos_token_ids = vocabulary.eos_token_ids
        self.add_bos = vocabulary.add_bos
        self.strip_leading_space = vocabulary.strip_leading_space
        self.chat_template = vocabulary.chat_template
        self.special_tokens_map = vocabulary.special_tokens_map
        self._first = _blind_to(self.control_tokens, vocabulary.backend)
        self._later = _without_prefix_space(self._first)
        self._spelled_out = _spelled_out(self.control_tokens, self._first)
        self._span = token_span(self._first, self.token_bytes)

    @classmethod
    def open(cls, path: Path) -> Tokenizer:
        """From a Hugging Face folder or a .gguf file. Raises ValueError that names the file and what is wrong."""
        if path.is_dir():
            return cls(open_folder_tokenizer(path))
        if path.suffix == ".gguf":
            return cls(open_gguf_tokenizer(path))
        raise ValueError(f"{path} is neither a folder nor a .gguf file")

    def pieces(self, kept: frozenset[int]) -> list[bytes]:
        """`visible_bytes`, with the spelling of the special tokens in `kept`."""
        if not kept:
            return self.visible_bytes
        if kept not in self._pieces:
            self._pieces[kept] = [
                self.token_bytes[index] if index in kept else piece for index, piece in enumerate(self.visible_bytes)
            ]
        return self._pieces[kept]

    def encode(self, text: str, *, add_bos: bool, parse_special: bool, limit: int | None = None) -> list[int]:
        """With `parse_special`, spellings of control tokens become those tokens; without, they are text like any
        other, and no control token can result. With `add_bos`, BOS is put before ids that do not begin with it.
        Raises TooManyTokens as `check_length` does."""
        self.check_length(text, limit)
        ids = self.encode_segments(self.control_tokens.split(text) if parse_special else [text])
        return self.with_bos(ids) if add_bos else ids

    def check_length(self, text: str, limit: int | None) -> None:
        """Raises TooManyTokens for a text that must have more than `limit` tokens by its length alone; one that
        passes may still have more."""
        if limit is not None and (at_least := self._span.fewest_tokens(text)) > limit:
            raise TooManyTokens(at_least, limit)

    def encode_segments(self, segments: Sequence[Segment]) -> list[int]:
        """Control tokens as ids, and the plain text between them as strings that cannot yield any."""
        ids: list[int] = []
        for index, segment in enumerate(segments):
            if isinstance(segment, int):
                ids.append(segment)
            else:
                ids += self._plain_ids(self._later if index else self._first, segment)
        return ids

    def spelling(self, token_id: int) -> str:
        """As the vocabulary itself writes the token; empty for an id without one."""
        return self._first.id_to_token(token_id) or ""

    def with_bos(self, ids: list[int]) -> list[int]:
        """The ids with BOS first, never twice; unchanged if the vocabulary has none."""
        if self.bos_token_id is None or ids[:1] == [self.bos_token_id]:
            return ids
        return [self.bos_token_id, *ids]

    def _plain_ids(self, backend: tokenizers.Tokenizer, text: str) -> list[int]:
        try:
            # Other than `encode`, this lets other threads run meanwhile.
            ids = backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        except TypeError:  # the library's answer to a str that has no UTF-8 form
            raise ValueError("the text holds half of a surrogate pair, which is not a character") from None
        spelled_out = self._spelled_out
        if spelled_out.keys().isdisjoint(ids):
            return ids
        return [piece for index in ids for piece in spelled_out.get(index, (index,))]


def _blind_to(control: ControlTokens, backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """The backend, no longer matching control tokens: it overlooks special tokens, so all of them are made special."""
    backend.add_special_tokens(
        [
            AddedToken(
                token.content,
                lstrip=token.lstrip,
                rstrip=token.rstrip,
                single_word=token.single_word,
                normalized=token.normalized,
                special=True,
            )
            for token in control.tokens.values()
            if not token.special
        ]
    )
    backend.encode_special_tokens = True
    return backend


def _without_prefix_space(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """For text after a control token, where a vocabulary that puts a space before the first word only puts none."""
    first_only = '"prepend_scheme":"first"'
    if backend.pre_tokenizer is None or first_only.encode() not in backend.pre_tokenizer.__getstate__():
        return backend
    later = tokenizers.Tokenizer.from_str(backend.to_str().replace(first_only, '"prepend_scheme":"never"'))
    later.encode_special_tokens = True
    return later


def _spelled_out(control: ControlTokens, backend: tokenizers.Tokenizer) -> dict[int, list[int]]:
    """Control tokens as single characters: in some vocabularies merges lead from plain text to a control token, and
    then these take its place. Left out are tokens that cannot result so, and the one that stands for the unknown."""
    model = backend.model
    unknown = getattr(model, "unk_token", None)
    characters = {
        index: [model.token_to_id(character) for character in token.content]
        for index, token in control.tokens.items()
        if token.content != unknown
    }
    return {index: ids for index, ids in characters.items() if None not in ids}
