"""The vocabulary of a Hugging Face folder: tokenizer.json with what stands around it (tokenizer_config.json,
special_tokens_map.json, chat_template.jinja, generation_config.json, config.json)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from replicas.text.token_bytes import byte_level_bytes, sentencepiece_bytes
from replicas.text.vocabulary import Vocabulary

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def open_folder_tokenizer(folder: Path) -> Vocabulary:
    """Raises ValueError that names the file at fault."""
    backend = _backend(folder / "tokenizer.json")
    config = _read_json(folder / "special_tokens_map.json") | _read_json(folder / "tokenizer_config.json")
    named = {name: _spelling(config[name]) for name in _NAMED_TOKENS if config.get(name)}
    _add_special_tokens(backend, [*named.values(), *_extra_special_tokens(config)])

    bos = backend.token_to_id(named["bos_token"]) if "bos_token" in named else None
    eos = backend.token_to_id(named["eos_token"]) if "eos_token" in named else None
    decoders = _steps(backend.decoder)
    return Vocabulary(
        backend=backend,
        token_bytes=_token_bytes(backend, folder, {step["type"] for step in decoders}),
        bos_token_id=bos,
        eos_token_ids=_eos_token_ids(folder, eos),
        add_bos=bos is not None and backend.encode("", add_special_tokens=True).ids[:1] == [bos],
        strip_leading_space=any(map(_strips_leading_space, decoders)),
        chat_template=_chat_template(folder, config.get("chat_template")),
        special_tokens_map=named,
    )


def _backend(path: Path) -> tokenizers.Tokenizer:
    if not path.is_file():
        raise ValueError(f"{path.parent} has no tokenizer.json")
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise ValueError(f"{path} cannot be read: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    return backend


def _add_special_tokens(backend: tokenizers.Tokenizer, spellings: Iterable[str]) -> None:
    """Matches tokens whole that the configuration calls special and tokenizer.json only lists as a word."""
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    backend.add_special_tokens(
        [
            AddedToken(spelling, normalized=False, special=True)
            for spelling in spellings
            if spelling not in known and backend.token_to_id(spelling) is not None
        ]
    )


def _extra_special_tokens(config: dict[str, Any]) -> list[str]:
    extra: list[Any] = list(config.get("additional_special_tokens") or [])
    more = config.get("extra_special_tokens") or []
    return [_spelling(token) for token in [*extra, *(more.values() if isinstance(more, dict) else more)]]


def _token_bytes(backend: tokenizers.Tokenizer, folder: Path, decoders: set[str]) -> list[bytes]:
    if "ByteLevel" in decoders:
        spelled = byte_level_bytes
    elif decoders & {"ByteFallback", "Metaspace"}:
        spelled = sentencepiece_bytes
    else:
        raise ValueError(
            f"{folder / 'tokenizer.json'} decodes by {sorted(decoders)}, but only byte-level and "
            "SentencePiece vocabularies are known"
        )
    ids = backend.get_vocab(with_added_tokens=True)
    token_bytes = [b""] * (max(ids.values()) + 1)
    for token, index in ids.items():
        token_bytes[index] = spelled(token)
    for index, added in backend.get_added_tokens_decoder().items():
        token_bytes[index] = added.content.encode()
    return token_bytes


def _steps(decoder: Any) -> list[dict[str, Any]]:
    """The decoder as a flat list of its serialized steps."""
    if decoder is None:
        return []
    state: dict[str, Any] = json.loads(decoder.__getstate__())
    steps: list[dict[str, Any]] = state["decoders"] if state["type"] == "Sequence" else [state]
    return steps


def _strips_leading_space(step: dict[str, Any]) -> bool:
    if step["type"] == "Strip":
        return bool(step["content"] == " " and step["start"] > 0)
    return bool(step["type"] == "Metaspace" and step["prepend_scheme"] != "never")


def _eos_token_ids(folder: Path, tokenizer_eos: int | None) -> tuple[int, ...]:
    """What generation ends on: generation_config.json (config.json where it says nothing) and the tokenizer's own."""
    for name in ("generation_config.json", "config.json"):
        stated: int | list[int] | None = _read_json(folder / name).get("eos_token_id")
        if stated is not None:
            break
    ids = [] if stated is None else [stated] if isinstance(stated, int) else stated
    return tuple(dict.fromkeys(ids if tokenizer_eos is None else [*ids, tokenizer_eos]))


def _chat_template(folder: Path, configured: str | list[dict[str, str]] | None) -> str | None:
    """The template file comes before tokenizer_config.json; of several named templates, `default` is taken."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    if isinstance(configured, list):
        return next((entry["template"] for entry in configured if entry["name"] == "default"), None)
    return configured


def _spelling(token: str | dict[str, Any]) -> str:
    return token if isinstance(token, str) else str(token["content"])


def _read_json(path: Path) -> dict[str, Any]:
    """An absent file says nothing."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, but must hold an object")
    return content
