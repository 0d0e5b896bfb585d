"""A gateway over an engine process that repeats its prompt, so that any text can be forced out of it."""

from __future__ import annotations

import pytest
from openai import OpenAI

from replicas.config import EngineConfig
from tests.support.local_gateway import local_gateway
from tests.support.scripted import scripted_gateway
from tests.support.sse import fixed_answer

PARROT = "tests.support.builders:parrot"


@pytest.fixture(scope="session")
def parrot(smollm2_path):
    """SmolLM2's tokenizer and template, 512 tokens of context, room for everything."""
    with local_gateway(smollm2_path, EngineConfig(max_batched_tokens=64, max_running=32), PARROT) as gateway:
        yield gateway


@pytest.fixture
def http(parrot):
    with parrot.client() as client:
        yield client


@pytest.fixture(scope="session")
def openai(parrot):
    return OpenAI(base_url=f"{parrot.url}/v1", api_key="any", max_retries=0)


@pytest.fixture
def alive(parrot, http):
    """After the test: healthy, idle, no block lost, and a fixed request still gets the same bytes."""
    before = fixed_answer(http)
    yield
    assert http.get("/health").status_code == 200
    assert fixed_answer(http) == before
    load = parrot.load()
    assert (load.running, load.waiting, load.kv_blocks_free) == (0, 0, load.kv_blocks_total)


@pytest.fixture(scope="session")
def scripted(tmp_path_factory):
    """Models that say what a test tells them to, in every dialect of tool calls and reasoning."""
    with scripted_gateway(tmp_path_factory.mktemp("dialects")) as gateway:
        yield gateway


@pytest.fixture(scope="session")
def chats(scripted):
    with scripted.gateway.client() as client:
        yield client


@pytest.fixture
def says(scripted, monkeypatch):
    """Makes the model say a text next."""

    def say(text: str) -> None:
        seed = scripted.script.add(text)
        monkeypatch.setattr("secrets.randbelow", lambda _: seed)

    return say
