"""What a model's files say about its text, in one form for both kinds of files."""

from __future__ import annotations

from dataclasses import dataclass

import tokenizers


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`backend` cuts and merges text; its added tokens are those that are matched whole, special or not.
    `token_bytes[i]` is what token i stands for (empty for an id without token). `add_bos`: a bare prompt begins with
    BOS. `strip_leading_space`: the first space of decoded text is the vocabulary's own. `special_tokens_map` holds
    the spellings that chat templates may use, such as bos_token."""

    backend: tokenizers.Tokenizer
    token_bytes: list[bytes]
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    add_bos: bool
    strip_leading_space: bool
    chat_template: str | None
    special_tokens_map: dict[str, str]
