"""From token ids to text, piece by piece as they are generated."""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence

from replicas.text.tokenizer import Tokenizer


class Detokenizer:
    """The text of one growing sequence of tokens. However the tokens are split over `push` calls, all that was
    returned is the whole decoded at once; only the bytes of an unfinished character are held back.

    Bytes that cannot be UTF-8 become U+FFFD, one for each maximal part of a character (the practice that Unicode
    recommends), also where `tokenizers` would put one for each byte: there, in SentencePiece vocabularies, a later
    byte may change what earlier ones meant, which a stream cannot take back. `continues_text` is for a prompt that
    ends in plain text: the space before the first word is then the model's own. Of the special tokens only those in
    `kept` are shown, or all if they are not skipped.
    """

    __slots__ = ("_held", "_hidden", "_pieces", "_strip_space")

    def __init__(
        self,
        tokenizer: Tokenizer,
        skip_special: bool = True,
        continues_text: bool = False,
        kept: frozenset[int] = frozenset(),
    ) -> None:
        self._pieces = tokenizer.pieces(kept) if skip_special else tokenizer.token_bytes
        self._strip_space = tokenizer.strip_leading_space and not continues_text
        self._hidden = tokenizer.special_ids - kept if skip_special else frozenset()
        self._held = b""

    def shown(self, token_id: int) -> bytes | None:
        """The bytes that a token would add to the text if it were pushed now; None for one that is not shown."""
        if token_id in self._hidden or token_id >= len(self._pieces):
            return None
        piece = self._pieces[token_id]
        return piece.removeprefix(b" ") if self._strip_space and not self._held else piece

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that is certain now. An id beyond the vocabulary (a padded row of the model) stands for nothing."""
        pieces = self._pieces
        try:
            data = self._held + b"".join([pieces[token_id] for token_id in token_ids])
        except IndexError:
            return self.push([token_id for token_id in token_ids if token_id < len(pieces)])
        text, consumed = utf_8_decode(data, "replace", False)
        self._held = data[consumed:]
        if self._strip_space and text:
            self._strip_space = False
            return text.removeprefix(" ")
        return text

    def finish(self) -> str:
        """What is left when the sequence ends: U+FFFD for a character that never became whole, or nothing."""
        text = self._held.decode("utf-8", "replace")
        self._held = b""
        return text
