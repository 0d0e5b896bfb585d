"""A prefix cache hit gives what a miss gives, whatever came in between. A real engine in float32, over HTTP."""

from __future__ import annotations

import itertools

import pytest

from cluster.codec import DEFAULT_BUILDER
from replicas.config import EngineConfig
from tests.support.checkpoints import write_tiny_with_small_vocabulary
from tests.support.local_gateway import local_gateway
from tests.support.sse import complete

BLOCK = 8
LENGTHS = [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 5 * BLOCK + 3]


def served(folder, **config):
    sizes = {"block_size": BLOCK, "max_batched_tokens": 64, "max_running": 4, "kv_cache_memory": 2 * 1024**2}
    return local_gateway(folder, EngineConfig(**{**sizes, **config}), DEFAULT_BUILDER)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_with_small_vocabulary(tmp_path_factory.mktemp("tiny"))


def prompt(length: int, tail: int = 0) -> list[int]:
    return [(7 * place + 13) % 400 + 50 for place in range(length)] + [60 + tail] * bool(tail)


def ask(http, token_ids: list[int], **options) -> tuple[str, int]:
    """The text, and how many of the prompt's tokens were cached."""
    body = {"prompt": token_ids, "max_tokens": 12, "temperature": 0, "ignore_eos": True} | options
    answer = complete(http, body)
    return answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.fixture(scope="module")
def uncached(folder):
    """The right answers: no cache, nothing else running."""
    prompts = [prompt(length, tail) for length in LENGTHS for tail in (0, 1, 2)]
    with served(folder, prefix_caching=False) as gateway, gateway.client() as http:
        answers = {tuple(p): ask(http, p) for p in prompts}
    assert all(cached == 0 for _, cached in answers.values())
    return {token_ids: text for token_ids, (text, _) in answers.items()}


@pytest.mark.parametrize("budget", [64, 5], ids=["whole", "in chunks smaller than the prefix"])
def test_hits_answer_as_misses_with_the_same_and_with_another_end(folder, uncached, budget):
    with served(folder, max_batched_tokens=budget) as gateway, gateway.client() as http:
        for length in LENGTHS:
            for turn, tail in itertools.product(range(3), (0, 1, 2)):
                token_ids = prompt(length, tail)
                text, cached = ask(http, token_ids)
                assert text == uncached[tuple(token_ids)]
                assert cached % BLOCK == 0
                assert cached < len(token_ids)
                if turn:
                    assert cached == (len(token_ids) - 1) // BLOCK * BLOCK


def test_hits_answer_as_misses_when_the_cache_is_too_small_for_all(folder, uncached):
    """Ten blocks hold one prompt and its answer: every other request evicts what the last one left."""
    tokens_per_mib = 1024**2 // (2 * 2 * 2 * 12 * 4)  # two layers, keys and values, two heads of 12, float32
    small = 10 * BLOCK * 1024**2 // tokens_per_mib
    with served(folder, kv_cache_memory=small) as gateway, gateway.client() as http:
        assert gateway.load().kv_blocks_total == 10
        found = []
        for token_ids in list(uncached) * 3:
            text, cached = ask(http, list(token_ids))
            assert text == uncached[token_ids]
            found.append(cached)
        assert gateway.load().prefix_hit_tokens_total == sum(found) > 0
        assert 0 in found[len(uncached) :], "nothing was ever evicted"


def test_another_salt_finds_nothing(folder, uncached):
    token_ids = prompt(LENGTHS[-1])
    with served(folder) as gateway, gateway.client() as http:
        assert ask(http, token_ids, cache_salt="a") == (uncached[tuple(token_ids)], 0)
        assert ask(http, token_ids, cache_salt="b") == (uncached[tuple(token_ids)], 0)
        assert ask(http, token_ids, cache_salt="a")[1] > 0
