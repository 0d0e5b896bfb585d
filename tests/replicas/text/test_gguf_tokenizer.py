"""A GGUF file's vocabulary gives the ids of the model's own tokenizer, or is refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import pre_tokenizers
from tokenizers.models import BPE
from transformers import AutoTokenizer
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

from replicas.text.pretokenizers import byte_level_pipeline
from replicas.text.tokenizer import Tokenizer
from tests.support.tokenizers import (
    TEXTS,
    sentencepiece_merges,
    write_byte_level_gguf,
    write_sentencepiece,
    write_sentencepiece_gguf,
)


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Tokenizer:
    return Tokenizer.open(smollm2_path)


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_bos=False, parse_special=False)


class TestSmolLM2:
    @pytest.mark.parametrize(
        ("text", "ids"),
        [
            ("Hello, we can use", [19556, 28, 392, 416, 722]),
            ("The capital of France is", [504, 3575, 282, 4649, 314]),
            ("Hello world! 123", [19556, 905, 17, 216, 33, 34, 35]),
            ("Café déjà vu.", [51, 1939, 2756, 32564, 90, 16739, 386, 101, 30]),
            ("  multiple   spaces", [216, 2701, 256, 5600]),
        ],
    )
    def test_gives_the_ids_of_the_published_tokenizer(self, smollm2: Tokenizer, text: str, ids: list[int]) -> None:
        assert encode(smollm2, text) == ids

    @pytest.mark.slow
    def test_equals_transformers_once_that_splits_digits(self, smollm2: Tokenizer, smollm2_path: Path) -> None:
        """transformers reads the vocabulary but not tokenizer.ggml.pre "smollm"; the published tokenizer.json has
        these two steps."""
        oracle = AutoTokenizer.from_pretrained(smollm2_path.parent, gguf_file=smollm2_path.name)
        without_digits = [text for text in TEXTS if not any(map(str.isnumeric, text))]
        assert [encode(smollm2, text) for text in without_digits] == [oracle(text).input_ids for text in without_digits]

        oracle.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        assert [encode(smollm2, text) for text in TEXTS] == [oracle(text).input_ids for text in TEXTS]

    def test_takes_flags_and_template_from_the_metadata(self, smollm2: Tokenizer) -> None:
        assert smollm2.vocab_size == 49152
        assert smollm2.bos_token_id == 1
        assert smollm2.eos_token_ids == (2,)
        assert smollm2.special_ids == frozenset(range(17))
        assert not smollm2.add_bos
        assert smollm2.chat_template is not None
        assert smollm2.chat_template.startswith("{% for message in messages %}")
        assert smollm2.special_tokens_map["eos_token"] == "<|im_end|>"


class TestByteLevel:
    @pytest.mark.parametrize(
        ("name", "family"),
        [
            ("llama-bpe", "llama3"),
            ("llama3", "llama3"),
            ("llama-v3", "llama3"),
            ("qwen2", "qwen2"),
            ("tekken", "tekken"),
        ],
    )
    def test_cuts_text_as_transformers_does(self, name: str, family: str) -> None:
        oracle = pre_tokenizers.Split(tokenizers.Regex(GGUF_PRE_TOKENIZER_SPLITS[family]), behavior="isolated")
        cut = byte_level_pipeline(name).pre_tokenizer
        spelled = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        for text in TEXTS:
            expected = [spelled.pre_tokenize_str(piece)[0][0] for piece, _ in oracle.pre_tokenize_str(text)]
            assert [piece for piece, _ in cut.pre_tokenize_str(text)] == expected

    def test_qwen2_composes_accents_as_its_own_tokenizer_does(self, tmp_path: Path) -> None:
        tokenizer = Tokenizer.open(write_byte_level_gguf(tmp_path / "m.gguf", pre="qwen2"))
        assert encode(tokenizer, "e\u0301") == encode(tokenizer, "é")

    def test_only_smollm_splits_digits(self, tmp_path: Path) -> None:
        def bytes_of(pre: str) -> list[bytes]:
            tokenizer = Tokenizer.open(write_byte_level_gguf(tmp_path / f"{pre}.gguf", pre=pre))
            return [tokenizer.token_bytes[token] for token in encode(tokenizer, "3.14 -0.5e10 2024-01-31 2024")]

        assert any(len(piece.strip()) > 1 and piece.strip().isdigit() for piece in bytes_of("gpt-2"))
        assert all(len(piece) == 1 for piece in bytes_of("smollm") if any(map(str.isdigit, piece.decode())))

    @pytest.mark.parametrize("pre", ["default", "gpt-5"])
    def test_refuses_a_pre_tokenizer_it_does_not_know(self, tmp_path: Path, pre: str) -> None:
        path = write_byte_level_gguf(tmp_path / "m.gguf", pre=pre)
        with pytest.raises(ValueError, match=rf"m\.gguf: tokenizer\.ggml\.pre is '{pre}'.*smollm"):
            Tokenizer.open(path)

    @pytest.mark.parametrize(
        ("metadata", "message"),
        [
            ({"model": "rwkv"}, "tokenizer.ggml.model is 'rwkv', but must be 'gpt2' or 'llama'"),
            ({"model": None}, "tokenizer.ggml.model is missing"),
            ({"tokens": None}, "tokenizer.ggml.tokens is missing"),
            ({"tokens": ["a", "b", "a"]}, "tokenizer.ggml.tokens holds 'a' twice"),
            ({"tokens": 7}, "tokenizer.ggml.tokens is of type int, but must be list"),
            ({"token_type": [1]}, "tokenizer.ggml.token_type has 1 entries for"),
            ({"pre": None}, "tokenizer.ggml.pre is missing"),
            ({"merges": None}, "tokenizer.ggml.merges is missing"),
            ({"merges": ["ab"]}, "holds 'ab', which is not a pair"),
            ({"merges": ["nothere neither"]}, "tokens and merges do not fit together"),
            ({"eos_token_id": 500}, "tokenizer.ggml.eos_token_id is 500, but the vocabulary has 500 tokens"),
        ],
    )
    def test_names_what_is_wrong_with_the_metadata(
        self, tmp_path: Path, metadata: dict[str, Any], message: str
    ) -> None:
        path = write_byte_level_gguf(tmp_path / "m.gguf", **{"pre": "gpt-2", **metadata})
        with pytest.raises(ValueError, match=r"m\.gguf") as refusal:
            Tokenizer.open(path)
        assert message in str(refusal.value)

    @pytest.mark.parametrize(
        ("stated", "pre", "expected"),
        [(True, "gpt-2", True), (False, "llama-bpe", False), (None, "gpt-2", False), (None, "llama-bpe", True)],
    )
    def test_begins_prompts_with_bos_as_the_file_says(
        self, tmp_path: Path, stated: bool | None, pre: str, expected: bool
    ) -> None:
        path = write_byte_level_gguf(tmp_path / "m.gguf", pre=pre, add_bos_token=stated)
        assert Tokenizer.open(path).add_bos is expected

    def test_ends_on_every_end_token_the_file_names(self, tmp_path: Path) -> None:
        path = write_byte_level_gguf(tmp_path / "m.gguf", pre="gpt-2", eos_token_id=2, eot_token_id=0, eom_token_id=2)
        assert Tokenizer.open(path).eos_token_ids == (2, 0)

    def test_matches_user_defined_tokens_whole_in_any_text(self, tmp_path: Path) -> None:
        path = write_byte_level_gguf(tmp_path / "m.gguf", pre="gpt-2")
        plain = Tokenizer.open(path)
        types = [3] * 3 + [4 if piece == b"the" else 1 for piece in plain.token_bytes[3:]]
        defined = Tokenizer.open(write_byte_level_gguf(tmp_path / "n.gguf", pre="gpt-2", token_type=types))
        the = plain.token_bytes.index(b"the")
        assert the not in encode(plain, "other")
        assert the in encode(defined, "other")
        assert the not in defined.special_ids


class TestSentencePiece:
    @pytest.fixture
    def both(self, tmp_path: Path) -> tuple[Tokenizer, tokenizers.Tokenizer]:
        """The GGUF, and the same vocabulary as a tokenizer.json."""
        folder = write_sentencepiece(tmp_path / "folder")
        return (
            Tokenizer.open(write_sentencepiece_gguf(tmp_path / "m.gguf")),
            tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")),
        )

    def test_gives_the_ids_of_a_tokenizer_json(self, both: tuple[Tokenizer, tokenizers.Tokenizer]) -> None:
        tokenizer, oracle = both
        for text in TEXTS:
            assert encode(tokenizer, text) == oracle.encode(text, add_special_tokens=False).ids

    def test_gives_the_ids_of_transformers_from_the_same_file(self, tmp_path: Path) -> None:
        path = write_sentencepiece_gguf(tmp_path / "m.gguf")
        oracle = AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name)
        tokenizer = Tokenizer.open(path)
        # transformers takes a space at the beginning for the prefix; llama.cpp and SentencePiece put another before it
        for text in (text for text in TEXTS if not text.startswith(" ")):
            assert tokenizer.encode(text, add_bos=True, parse_special=False) == oracle(text).input_ids

    def test_merges_the_better_score_first(self, tmp_path: Path) -> None:
        """Random vocabularies over two letters, where nearly every text can be cut in several ways, and with ties."""
        draw = random.Random(0)
        words = ["".join(letters) for length in range(2, 5) for letters in product("ab", repeat=length)]
        for _ in range(20):
            learned = draw.sample(words, 12)
            scores = {"<unk>": 0.0, "▁": -50.0, "a": -50.0, "b": -50.0}
            scores |= {word: float(draw.randint(-8, -1)) for word in learned}
            path = write_sentencepiece_gguf(
                tmp_path / "m.gguf",
                tokens=list(scores),
                scores=list(scores.values()),
                token_type=[2] + [1] * (len(scores) - 1),
                bos_token_id=None,
                eos_token_id=None,
            )
            tokenizer = Tokenizer.open(path)
            oracle = tokenizers.Tokenizer(
                BPE(
                    {token: index for index, token in enumerate(scores)},
                    sentencepiece_merges(scores),
                    unk_token="<unk>",
                )
            )
            texts = ["".join(draw.choices("ab", k=draw.randint(2, 30))) for _ in range(20)]
            assert [encode(tokenizer, text) for text in texts] == [oracle.encode("▁" + text).ids for text in texts]

    def test_puts_the_prefix_space_after_special_tokens_too(self, both: tuple[Tokenizer, tokenizers.Tokenizer]) -> None:
        tokenizer, oracle = both
        text = "<s>hello</s><s> world"
        assert (
            tokenizer.encode(text, add_bos=False, parse_special=True)
            == oracle.encode(text, add_special_tokens=False).ids
        )

    def test_falls_back_to_bytes(self, both: tuple[Tokenizer, tokenizers.Tokenizer]) -> None:
        ids = encode(both[0], "龘")
        assert [both[0].token_bytes[token] for token in ids] == [b" ", b"\xe9", b"\xbe", b"\x98"]
        assert not both[0].special_ids & set(ids)

    def test_leaves_out_the_prefix_space_if_told(self, tmp_path: Path) -> None:
        tokenizer = Tokenizer.open(write_sentencepiece_gguf(tmp_path / "m.gguf", add_space_prefix=False))
        assert b"".join(tokenizer.token_bytes[token] for token in encode(tokenizer, "a b")) == b"a b"
        assert not tokenizer.strip_leading_space

    @pytest.mark.parametrize("wrong", [{"scores": None}, {"scores": [0.5]}])
    def test_refuses_scores_that_do_not_fit(self, tmp_path: Path, wrong: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=r"tokenizer\.ggml\.scores"):
            Tokenizer.open(write_sentencepiece_gguf(tmp_path / "m.gguf", **wrong))


@pytest.mark.parametrize(
    "breaks",
    [
        lambda content: b"",
        lambda content: b"version https://git-lfs.github.com/spec/v1\n",
        lambda content: content[: len(content) // 2],
        lambda content: content[:8] + b"\xff" * 16,
        lambda content: b"<html>" + content,
    ],
)
def test_refuses_a_broken_file_by_name(tmp_path: Path, breaks: Callable[[bytes], bytes]) -> None:
    path = write_byte_level_gguf(tmp_path / "whole.gguf", pre="gpt-2")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(breaks(path.read_bytes()))
    with pytest.raises(ValueError, match=r"broken\.gguf"):
        Tokenizer.open(broken)
