"""How byte-level vocabularies cut text before they merge: the pre-tokenizers that GGUF files name by a word.

A wrong cut gives other tokens without any error, so a name enters this table only when its pipeline was compared with
the model's own tokenizer.json; every other name is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex
from tokenizers.normalizers import NFC, Normalizer
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class ByteLevelPipeline:
    """What happens to text before byte-pair merging. `ignore_merges`: a whole word of the vocabulary is taken as it
    is; `add_bos`: prompts begin with BOS where the file does not say."""

    pre_tokenizer: PreTokenizer
    normalizer: Normalizer | None = None
    ignore_merges: bool = False
    add_bos: bool = False


def byte_level_pipeline(name: str) -> ByteLevelPipeline:
    """The pipeline that GGUF files call `name` (key tokenizer.ggml.pre); ValueError for a name not known."""
    match name:
        case "gpt-2":
            return ByteLevelPipeline(ByteLevel(add_prefix_space=False))
        case "smollm":
            return ByteLevelPipeline(Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]))
        case "llama-bpe" | "llama3" | "llama-v3":
            return ByteLevelPipeline(_split(_LLAMA3), ignore_merges=True, add_bos=True)
        case "qwen2":
            return ByteLevelPipeline(_split(_QWEN2), normalizer=NFC())
        case "tekken":
            return ByteLevelPipeline(_split(_TEKKEN), ignore_merges=True, add_bos=True)
    raise ValueError(
        f"tokenizer.ggml.pre is {name!r}, but only gpt-2, smollm, llama-bpe, llama3, llama-v3, qwen2 and tekken are "
        "known; convert the model again with a current converter, or use its Hugging Face folder"
    )


def _split(pattern: str) -> PreTokenizer:
    return Sequence([Split(Regex(pattern), behavior="isolated"), ByteLevel(add_prefix_space=False, use_regex=False)])
