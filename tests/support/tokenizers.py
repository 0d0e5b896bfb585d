"""Tiny but real tokenizers, written as Hugging Face folders and as GGUF files, and texts that tell tokenizers apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import tokenizers
from tokenizers import AddedToken, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CHATML_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LLAMA2 = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content']"
    " + ' [/INST]' }}{% else %}{{ ' ' + message['content'] + ' ' + eos_token }}{% endif %}{% endfor %}"
)
SENTENCEPIECE_SPECIALS = ("<unk>", "<s>", "</s>")

TEXTS = (
    "",
    " ",
    "Hello, world!",
    "The quick brown fox jumps over the lazy dog.",
    "1234567 3.14 -0.5e10 2024-01-31 ٣٤٥ ½ Ⅷ",
    "I'll we'VE don't THAT'S it's he'd y'all",
    "\n\n  x\n\n\n\ty \r\n z   ",
    "Café déjà vu, naïve Ångström; e\u0301 o\u0308",
    "😊👨‍👩‍👧 🫠🥹 🇩🇪",
    "你好，世界。龜 안녕하세요 こんにちは",
    "                                        forty spaces",
    "def f(x):\n    return x ** 2  # comment\n\n\nclass A:\n\tpass\n",
    '<div class="a">[1, 2]</div> a<b && c>d',
    "https://example.org/path?q=1&r=%20 user@example.org",
    "ďábel ŽLUŤOUČKÝ kůň  ÇA Straße ﬁ ㎏",
    "\u00a0non\u2003breaking\u200b zero\ufeff",
    "мир Ω≈ç√∫ עברית العربية हिन्दी ไทย",
    "trailing space ",
    "...!!!???---___",
)
"""No text spells a special token."""


def write_byte_level(
    folder: Path, *, bos: bool = False, chat_template: str | None = CHATML, tags: tuple[str, ...] = ()
) -> Path:
    """A GPT-2-like vocabulary. `bos` adds <|endoftext|> before every text; `tags` are added tokens, not special."""
    backend = tokenizers.Tokenizer(BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend.train_from_iterator(
        TEXTS,
        BpeTrainer(
            vocab_size=500, show_progress=False, initial_alphabet=alphabet, special_tokens=list(CHATML_SPECIALS)
        ),
    )
    backend.add_tokens([AddedToken(tag, normalized=False) for tag in tags])
    if bos:
        backend.post_processor = processors.TemplateProcessing(
            single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
        )
    config = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "chat_template": chat_template}
    return _write_folder(folder, backend, config)


def write_sentencepiece(
    folder: Path, *, bos: bool = True, chat_template: str | None = LLAMA2, first_only: bool = False
) -> Path:
    """A Llama-2-like vocabulary with byte fallback. `first_only` puts the prefix space before the first word of a
    text only, not also after each special token."""
    scores = _scores(_sentencepiece_vocabulary())
    backend = tokenizers.Tokenizer(
        BPE(
            vocab={token: index for index, token in enumerate(scores)},
            merges=sentencepiece_merges(scores),
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    if first_only:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in SENTENCEPIECE_SPECIALS])
    if bos:
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "chat_template": chat_template}
    return _write_folder(folder, backend, config)


def write_byte_level_gguf(path: Path, *, pre: str, chat_template: str | None = CHATML, **metadata: Any) -> Path:
    """The vocabulary of `write_byte_level` as GGUF. `metadata` overrides `tokenizer.ggml.*`; None leaves a key out."""
    model = json.loads(
        tokenizers.Tokenizer.from_file(str(write_byte_level(path.with_suffix("")) / "tokenizer.json")).to_str()
    )["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    types = [gguf.TokenType.CONTROL if token in CHATML_SPECIALS else gguf.TokenType.NORMAL for token in tokens]
    merges = [" ".join(merge) for merge in model["merges"]]
    return _write_gguf(
        path,
        chat_template,
        {
            "model": "gpt2",
            "pre": pre,
            "tokens": tokens,
            "token_type": types,
            "merges": merges,
            "bos_token_id": 0,
            "eos_token_id": 2,
            **metadata,
        },
    )


def write_sentencepiece_gguf(path: Path, *, chat_template: str | None = LLAMA2, **metadata: Any) -> Path:
    """The vocabulary of `write_sentencepiece` as GGUF."""
    tokens = _sentencepiece_vocabulary()
    special = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    types = special + [gguf.TokenType.BYTE] * 256 + [gguf.TokenType.NORMAL] * (len(tokens) - 259)
    return _write_gguf(
        path,
        chat_template,
        {
            "model": "llama",
            "tokens": tokens,
            "token_type": types,
            "scores": list(_scores(tokens).values()),
            "bos_token_id": 1,
            "eos_token_id": 2,
            "unknown_token_id": 0,
            **metadata,
        },
    )


def sentencepiece_merges(scores: dict[str, float]) -> list[tuple[str, str]]:
    """What transformers' own conversion makes of a vocabulary in the order of its ids."""
    from transformers.tokenization_utils_base import generate_merges

    merges: list[tuple[str, str]] = generate_merges({token: index for index, token in enumerate(scores)}, scores)
    return merges


def _sentencepiece_vocabulary() -> list[str]:
    trained = tokenizers.Tokenizer(BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.train_from_iterator(TEXTS[:4] * 3 + TEXTS[4:12], BpeTrainer(vocab_size=200, show_progress=False))
    vocabulary = trained.get_vocab()
    learned = sorted(vocabulary, key=vocabulary.__getitem__)
    return [*SENTENCEPIECE_SPECIALS, *(f"<0x{byte:02X}>" for byte in range(256)), *learned]


def _scores(tokens: list[str]) -> dict[str, float]:
    """As SentencePiece numbers them: the later a piece was learned, the worse."""
    return {token: 0.0 if index < 259 else float(258 - index) for index, token in enumerate(tokens)}


def _write_folder(folder: Path, backend: tokenizers.Tokenizer, config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    stated = {key: value for key, value in config.items() if value is not None}
    tokenizer_class = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(stated | tokenizer_class))
    return folder


def _write_gguf(path: Path, chat_template: str | None, metadata: dict[str, Any]) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata.items():
        _add_value(writer, f"tokenizer.ggml.{key}", value)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    match value:
        case None:
            return
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case str():
            writer.add_string(key, value)
        case list():
            writer.add_array(key, value)
