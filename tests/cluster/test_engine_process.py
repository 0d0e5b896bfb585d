"""A real engine process behind its client, and the bus between it and a gateway."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from cluster.bus_client import BusClient
from cluster.codec import Answer, Finished, Refused, Stranger, Submit, TokenRow, decode_answer, encode
from cluster.engine_client import EngineClient, EngineDiedError, EngineStartError
from cluster.token_feed import TokenFeed
from replicas.config import EngineConfig
from replicas.messages import GenerateRequest, RequestSummary, TokenLogprobs
from tests.support.builders import parrot_logprobs
from tests.support.checking_executor import continuation
from tests.support.engines import request

CONFIG = EngineConfig(block_size=4, max_batched_tokens=16, max_running=4)
CHECKING = "tests.support.builders:checking"


@pytest.fixture
async def engine():
    client = await EngineClient.start("a model", CONFIG, "127.0.0.1", CHECKING)
    yield client
    await client.close()


@pytest.fixture
async def bus():
    client = BusClient()
    yield client
    client.close()


async def generate(engine: EngineClient, gateway: str, asked: GenerateRequest) -> Answer:
    return decode_answer(await engine.generate(asked.request_id, encode(Submit(gateway, asked))))


@pytest.fixture
async def gateway(engine, bus):
    """The id of a gateway that has joined the engine's bus."""
    await bus.connect(engine.info.bus_address)
    return bus.gateway_id


async def read_all(feed: TokenFeed) -> tuple[list[int], str]:
    token_ids: list[int] = []
    while True:
        new, _, reason = await feed.next()
        token_ids += new
        if reason is not None:
            return token_ids, reason


async def test_tokens_come_over_the_bus_and_the_summary_repeats_them(engine, bus, gateway):
    feed = TokenFeed()
    bus.subscribe("r", feed)
    call = asyncio.create_task(generate(engine, gateway, request("r", [1, 2, 3], 10)))
    assert await read_all(feed) == (continuation([1, 2, 3], 10), "length")
    answer = await call
    assert isinstance(answer, Finished)
    assert list(answer.summary.token_ids) == continuation([1, 2, 3], 10)
    assert bus.lost_messages == 0


@pytest.mark.parametrize("is_bus_deaf", [False, True])
async def test_log_probabilities_come_over_the_bus_and_the_summary_repeats_them(bus, is_bus_deaf):
    engine = await EngineClient.start("a model", CONFIG, "127.0.0.1", "tests.support.builders:parrot")
    await bus.connect(engine.info.bus_address)
    feed, prompt = TokenFeed(), list(range(100, 130))
    if not is_bus_deaf:
        bus.subscribe("r", feed)
    answer = await generate(engine, bus.gateway_id, request("r", prompt, 40, logprobs=2, prompt_logprobs=1))
    assert bool(feed.logprobs) != is_bus_deaf
    feed.end(answer.summary)
    token_ids, logprobs, reason = await feed.next()
    assert (token_ids, reason) == ([*prompt, *prompt[:10]], "length")
    assert logprobs == [parrot_logprobs(token_id, 2) for token_id in token_ids]
    assert feed.prompt_logprobs == (None, *(parrot_logprobs(token_id, 1) for token_id in prompt[1:]))
    assert answer.summary.logprobs == tuple(logprobs)
    await engine.close()


async def test_a_gateway_that_never_said_hello_is_told_where_to(engine, bus):
    asked = request("r", [1, 2, 3], 10)
    answer = await generate(engine, bus.gateway_id, asked)
    assert answer == Stranger(engine.info.bus_address)
    await bus.connect(answer.bus_address)
    assert isinstance(await generate(engine, bus.gateway_id, asked), Finished)


async def test_nothing_is_left_on_disk_even_by_kill(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    client = await EngineClient.start("a model", CONFIG, "127.0.0.1", CHECKING)
    assert list(tmp_path.iterdir()) == []
    assert (await client.ping(5)).running == 0
    await client.close()


async def test_an_engine_without_its_replica_ends(tmp_path):
    """A process that starts an engine and is killed: the engine notices by itself."""
    script = (
        "import asyncio\nfrom cluster.engine_client import EngineClient\nfrom replicas.config import EngineConfig\n"
        "async def main():\n"
        f"    engine = await EngineClient.start('m', EngineConfig(block_size=4), '127.0.0.1', {CHECKING!r})\n"
        "    print(engine.pid, flush=True)\n    await asyncio.sleep(60)\nasyncio.run(main())\n"
    )
    replica = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
    engine = int(await replica.stdout.readline())
    replica.kill()
    await replica.wait()
    for _ in range(50):
        if not Path(f"/proc/{engine}").exists():
            return
        await asyncio.sleep(0.1)
    raise AssertionError("the engine process outlives its replica")


async def test_an_impossible_request_is_refused_with_the_reason(engine, gateway):
    answer = await generate(engine, gateway, request("r", [1] * 300, 10))
    assert isinstance(answer, Refused)
    assert "limit of 256" in answer.message


async def test_an_abort_on_the_bus_ends_the_call_and_frees_the_blocks(engine, bus, gateway):
    feed = TokenFeed()
    bus.subscribe("r", feed)
    call = asyncio.create_task(generate(engine, gateway, request("r", [1, 2, 3], 200)))
    await feed.next()
    bus.abort(engine.info.bus_address, "r")
    answer = await asyncio.wait_for(call, 5)
    assert answer.summary.finish_reason == "abort"
    load = await engine.ping(5)
    assert (load.running, load.kv_blocks_free) == (0, load.kv_blocks_total)


async def test_an_abort_that_overtakes_its_request_is_remembered(engine, bus, gateway):
    bus.abort(engine.info.bus_address, "r")
    await asyncio.sleep(0.2)
    answer = await asyncio.wait_for(generate(engine, gateway, request("r", [1, 2, 3], 200)), 5)
    assert (answer.summary.finish_reason, len(answer.summary.token_ids)) == ("abort", 0)


async def test_a_cancelled_call_aborts_its_request(engine, gateway):
    call = asyncio.create_task(generate(engine, gateway, request("r", [1, 2, 3], 200)))
    await asyncio.sleep(0.05)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (await engine.ping(5)).running == 0


async def test_a_killed_engine_fails_its_calls_at_once(engine, gateway):
    call = asyncio.create_task(generate(engine, gateway, request("r", [1, 2, 3], 250)))
    await engine.ping(5)
    os.kill(engine.pid, signal.SIGKILL)
    with pytest.raises(EngineDiedError):
        await asyncio.wait_for(call, 5)
    with pytest.raises(EngineDiedError):
        await generate(engine, gateway, request("s", [1]))


async def test_a_stopped_engine_does_not_answer_a_ping(engine):
    os.kill(engine.pid, signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        await engine.ping(0.3)
    os.kill(engine.pid, signal.SIGCONT)
    await engine.ping(5)


async def test_a_stopped_engine_is_ended_within_five_seconds_and_its_calls_fail(engine, gateway):
    call = asyncio.create_task(generate(engine, gateway, request("r", [1, 2, 3], 250)))
    await engine.ping(5)
    os.kill(engine.pid, signal.SIGSTOP)
    with pytest.raises(EngineDiedError):
        await asyncio.wait_for(call, 6)
    assert not engine.alive


@pytest.mark.parametrize(("builder", "words"), [("broken", "a model is no model"), ("dying", "status 7")])
async def test_an_engine_that_cannot_start_says_why_and_leaves_nothing(builder, words, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(EngineStartError, match=words):
        await EngineClient.start("a model", CONFIG, "127.0.0.1", f"tests.support.builders:{builder}")
    assert list(Path(tmp_path).iterdir()) == []


class TestTokenFeed:
    async def test_repeated_tokens_are_dropped_and_a_gap_is_filled_by_the_summary(self, engine, gateway):
        summary = (await generate(engine, gateway, request("r", [5], 6))).summary
        rows = [TokenRow("r", 0, index, (token,)) for index, token in enumerate(summary.token_ids)]
        feed = TokenFeed()
        for row in (rows[0], rows[0], rows[1], rows[3], rows[4]):
            feed.push(row)
        assert await feed.next() == (list(summary.token_ids[:2]), [], None)
        feed.end(summary)
        assert await feed.next() == (list(summary.token_ids[2:]), [], "length")

    async def test_a_new_attempt_goes_on_behind_the_tokens_that_came(self):
        feed = TokenFeed()
        feed.began()
        feed.push(TokenRow("r", 0, 0, (9, 8)))
        first: list[int] = []
        feed.begin_attempt(lambda: first.append(len(feed.token_ids)))
        assert (feed.new_tokens, feed.has_begun, first) == (0, False, [])
        feed.push(TokenRow("r~1", 0, 0, (7,)))
        feed.push(TokenRow("r~1", 0, 2, (7,)))
        assert (feed.new_tokens, first) == (1, [3])
        feed.push(TokenRow("r~1", 0, 3, (6,)))
        assert first == [3]
        assert await feed.next() == ([9, 8, 7, 6], [], None)

    async def test_log_probabilities_are_joined_as_their_tokens_are(self):
        """Over two attempts, of which the second's messages are lost from some token on."""
        entries = [TokenLogprobs(-float(index), ((index, -0.5),)) for index in range(5)]
        prompt = (None, TokenLogprobs(-float("inf")))
        feed = TokenFeed()
        feed.push(TokenRow("r", 0, 0, (10, 11), None, tuple(entries[:2]), prompt))
        assert await feed.next() == ([10, 11], entries[:2], None)
        assert feed.prompt_logprobs == prompt
        feed.begin_attempt(lambda: None)
        feed.push(TokenRow("r~1", 0, 2, (12,), None, (entries[2],)))
        feed.push(TokenRow("r~1", 0, 4, (14,), "length", (entries[4],)))
        feed.end(RequestSummary("r~1", (10, 11, 12, 13, 14), "length", 2, 0, 0.0, logprobs=tuple(entries[2:])))
        assert await feed.next() == ([12, 13, 14], entries[2:], "length")
        assert feed.prompt_logprobs == prompt

    async def test_a_summary_alone_has_everything(self):
        entries, prompt = (TokenLogprobs(-1.0), TokenLogprobs(-2.0)), (None, TokenLogprobs(-3.0, ((4, -0.1),)))
        feed = TokenFeed()
        feed.begin_attempt(lambda: None)
        feed.end(RequestSummary("r", (7, 8), "stop", 2, 0, 0.0, logprobs=entries, prompt_logprobs=prompt))
        assert await feed.next() == ([7, 8], list(entries), "stop")
        assert feed.prompt_logprobs == prompt

    async def test_what_arrived_before_a_failure_is_read_first(self):
        feed = TokenFeed()
        feed.push(TokenRow("r", 0, 0, (8,)))
        feed.fail(EngineDiedError("gone"))
        assert await feed.next() == ([8], [], None)
        with pytest.raises(EngineDiedError):
            await feed.next()
