"""Where requests go among several replicas: to the warm one while it is idle, over all of them under load. Real
engine processes behind a real gateway."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from replicas.config import EngineConfig
from tests.support.local_gateway import LocalGateway, local_gateway
from tests.support.sse import complete

REPLICAS = 4
CONCURRENCY = 32
REQUESTS = 160
MOST_OVER_MEAN = 2.0
SYSTEM = " ".join(f"rule {number} says that {number} is a number;" for number in range(120))
COMMON = {"model": "test", "max_tokens": 150, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def parrots(smollm2_path):
    config = EngineConfig(max_model_len=2000, max_running=64)
    with local_gateway(smollm2_path, config, "tests.support.builders:parrot", engines=REPLICAS) as gateway:
        yield gateway


def generated(gateway: LocalGateway) -> list[int]:
    return [gateway.load(place).generation_tokens_total for place in range(REPLICAS)]


def shares(gateway: LocalGateway, work: Callable[[], Any]) -> list[int]:
    """The output tokens that each replica contributes to some work."""
    before = generated(gateway)
    work()
    return [after - earlier for after, earlier in zip(generated(gateway), before, strict=True)]


def ask_all(gateway: LocalGateway, prompts: list[Any], concurrency: int = CONCURRENCY) -> None:
    local = threading.local()

    def ask(prompt: Any) -> None:
        if not hasattr(local, "http"):
            local.http = gateway.client()
        complete(local.http, COMMON | {"prompt": prompt})

    with ThreadPoolExecutor(concurrency) as threads:
        list(threads.map(ask, prompts))


def check_spread(found: list[int]) -> None:
    assert sum(found) == REQUESTS * COMMON["max_tokens"]
    assert max(found) <= MOST_OVER_MEAN * sum(found) / REPLICAS, found


def test_identical_prompts_spread_under_load(parrots):
    check_spread(shares(parrots, lambda: ask_all(parrots, ["the very same prompt " * 12] * REQUESTS)))


def test_prompts_behind_one_system_prompt_spread_under_load(parrots):
    prompts = [f"{SYSTEM} Question {number}: what is {number}?" for number in range(REQUESTS)]
    check_spread(shares(parrots, lambda: ask_all(parrots, prompts)))


def test_prompts_without_a_usable_prefix_spread_under_load(parrots):
    texts = [f"{number}?" for number in range(REQUESTS // 2)]
    token_ids = [[300 + number, 400, 500] for number in range(REQUESTS // 2)]
    check_spread(shares(parrots, lambda: ask_all(parrots, [*texts, *token_ids])))


def test_short_prompts_one_at_a_time_spread_as_well(parrots):
    found = shares(parrots, lambda: ask_all(parrots, [[700 + n, 9, 9] for n in range(REQUESTS)], concurrency=1))
    check_spread(found)


def test_while_idle_a_long_prefix_goes_where_it_is_warm(parrots):
    prompt = " ".join(f"{number} bottles of beer on the wall," for number in range(150))
    ask_all(parrots, [prompt], concurrency=1)
    found = shares(parrots, lambda: ask_all(parrots, [f"{prompt} verse {n}" for n in range(20)], concurrency=1))
    assert sorted(found)[:-1] == [0] * (REPLICAS - 1)
