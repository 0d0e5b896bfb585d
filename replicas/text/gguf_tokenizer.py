"""The vocabulary that a GGUF file carries in its metadata (`tokenizer.ggml.*`, `tokenizer.chat_template`).

Two kinds are known: `gpt2`, byte-level BPE with its merges, and `llama`, SentencePiece BPE whose merges follow from the
scores. Every token that the file marks as control is special; user-defined ones are matched whole in any text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any, TypeVar

import tokenizers
from tokenizers import AddedToken, normalizers
from tokenizers.models import BPE

from replicas.loading.gguf_file import read_gguf
from replicas.text.pretokenizers import byte_level_pipeline
from replicas.text.token_bytes import byte_level_bytes, sentencepiece_bytes
from replicas.text.vocabulary import Vocabulary

Metadata = Mapping[str, Any]
T = TypeVar("T")


class TokenType(IntEnum):
    """The values of tokenizer.ggml.token_type."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def open_gguf_tokenizer(path: Path) -> Vocabulary:
    """Raises ValueError that names the file, the key and what was expected."""
    metadata = read_gguf(path).metadata
    try:
        return _vocabulary(metadata)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _vocabulary(metadata: Metadata) -> Vocabulary:
    tokens = _required(metadata, "tokenizer.ggml.tokens", list)
    ids = {token: index for index, token in enumerate(tokens)}
    if len(ids) < len(tokens):
        twice = next(token for index, token in enumerate(tokens) if ids[token] != index)
        raise ValueError(f"tokenizer.ggml.tokens holds {twice!r} twice")
    types = _aligned(metadata, "tokenizer.ggml.token_type", tokens)
    kind = _required(metadata, "tokenizer.ggml.model", str)
    if kind == "gpt2":
        backend, add_bos = _byte_level(metadata, ids)
    elif kind == "llama":
        backend, add_bos = _sentencepiece(metadata, ids, types), True
    else:
        raise ValueError(f"tokenizer.ggml.model is {kind!r}, but must be 'gpt2' or 'llama'")
    _add_whole_tokens(backend, tokens, types)

    bos = _token_id(metadata, "bos", tokens)
    ends = (_token_id(metadata, name, tokens) for name in ("eos", "eot", "eom"))
    return Vocabulary(
        backend=backend,
        token_bytes=_token_bytes(tokens, types, byte_level_bytes if kind == "gpt2" else sentencepiece_bytes),
        bos_token_id=bos,
        eos_token_ids=tuple(dict.fromkeys(end for end in ends if end is not None)),
        add_bos=bos is not None and bool(metadata.get("tokenizer.ggml.add_bos_token", add_bos)),
        strip_leading_space=kind == "llama" and _adds_space_prefix(metadata),
        chat_template=metadata.get("tokenizer.chat_template"),
        special_tokens_map=_special_tokens_map(metadata, tokens),
    )


def _byte_level(metadata: Metadata, ids: dict[str, int]) -> tuple[tokenizers.Tokenizer, bool]:
    """The tokenizer, and whether its prompts begin with BOS by default."""
    pipeline = byte_level_pipeline(_required(metadata, "tokenizer.ggml.pre", str))
    merges = [_merge_pair(merge) for merge in _required(metadata, "tokenizer.ggml.merges", list)]
    backend = _bpe(ids, merges, ignore_merges=pipeline.ignore_merges)
    backend.pre_tokenizer = pipeline.pre_tokenizer
    if pipeline.normalizer is not None:
        backend.normalizer = pipeline.normalizer
    return backend, pipeline.add_bos


def _sentencepiece(metadata: Metadata, ids: dict[str, int], types: list[int]) -> tokenizers.Tokenizer:
    scores: list[float] = _aligned(metadata, "tokenizer.ggml.scores", ids)
    mergeable = {token: index for token, index in ids.items() if types[index] == TokenType.NORMAL}
    unknown = next((token for token, index in ids.items() if types[index] == TokenType.UNKNOWN), None)
    backend = _bpe(ids, _merges_of(mergeable, scores), unk_token=unknown, fuse_unk=True, byte_fallback=True)
    escape = normalizers.Replace(" ", "▁")
    prefix = [normalizers.Prepend("▁")] if _adds_space_prefix(metadata) else []
    backend.normalizer = normalizers.Sequence([*prefix, escape])
    return backend


def _merges_of(ids: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """SentencePiece joins the pair whose token has the best score (Kudo and Richardson 2018), so each way to cut a
    token into two tokens is a merge ranked by that token's score; among equals, as in transformers' conversion, the
    longer left part goes first."""
    ranked = []
    for token, index in ids.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                ranked.append((-scores[index], -len(left), -len(right), left, right))
    ranked.sort(key=lambda merge: merge[:3])
    return [(left, right) for *_, left, right in ranked]


def _bpe(ids: dict[str, int], merges: list[tuple[str, str]], **options: Any) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer(BPE(vocab=ids, merges=merges, **options))
    except Exception as error:  # the library raises plain Exception
        raise ValueError(f"tokens and merges do not fit together: {error}") from error


def _add_whole_tokens(backend: tokenizers.Tokenizer, tokens: list[str], types: list[int]) -> None:
    special = [
        token for token, kind in zip(tokens, types, strict=True) if kind in (TokenType.CONTROL, TokenType.UNKNOWN)
    ]
    plain = [token for token, kind in zip(tokens, types, strict=True) if kind == TokenType.USER_DEFINED]
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    backend.add_tokens([AddedToken(token, normalized=False) for token in plain])


def _token_bytes(tokens: list[str], types: list[int], spelled: Callable[[str], bytes]) -> list[bytes]:
    whole = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)
    return [token.encode() if kind in whole else spelled(token) for token, kind in zip(tokens, types, strict=True)]


def _special_tokens_map(metadata: Metadata, tokens: list[str]) -> dict[str, str]:
    keys = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: _token_id(metadata, key, tokens) for name, key in keys.items()}
    return {name: tokens[index] for name, index in ids.items() if index is not None}


def _merge_pair(merge: str) -> tuple[str, str]:
    left, separator, right = merge.partition(" ")
    if not (left and separator and right):
        raise ValueError(f"tokenizer.ggml.merges holds {merge!r}, which is not a pair")
    return left, right


def _adds_space_prefix(metadata: Metadata) -> bool:
    return bool(metadata.get("tokenizer.ggml.add_space_prefix", True))


def _token_id(metadata: Metadata, name: str, tokens: list[str]) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    index: int | None = metadata.get(key)
    if index is not None and not 0 <= index < len(tokens):
        raise ValueError(f"{key} is {index}, but the vocabulary has {len(tokens)} tokens")
    return index


def _aligned(metadata: Metadata, key: str, tokens: list[str] | dict[str, int]) -> list[Any]:
    values = _required(metadata, key, list)
    if len(values) != len(tokens):
        raise ValueError(f"{key} has {len(values)} entries for {len(tokens)} tokens")
    return values


def _required(metadata: Metadata, key: str, kind: type[T]) -> T:
    if key not in metadata:
        raise ValueError(f"{key} is missing from the metadata")
    value = metadata[key]
    if not isinstance(value, kind):
        raise ValueError(f"{key} is of type {type(value).__name__}, but must be {kind.__name__}")
    return value
