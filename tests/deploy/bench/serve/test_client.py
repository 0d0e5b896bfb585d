"""What the client makes of answers that come in pieces, with faults, and from servers of different understanding."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import pairwise
from urllib.parse import urlsplit

import pytest

from deploy.bench.serve.events import EventReader
from deploy.bench.serve.generator import Run, closed_loop, open_loop
from deploy.bench.serve.http import BrokenResponse, Pool, Response
from deploy.bench.serve.target import Target, opened
from deploy.bench.serve.workload import Conversation, Piece, Turn
from deploy.errors import UserError
from tests.support.openai_server import MODEL, Behaviour, OpenAIServer, openai_server

TOKENS = 5


def turn(prompt_tokens: int = 100, max_tokens: int = TOKENS) -> Turn:
    return Turn((Piece((7, 1, prompt_tokens), prompt_tokens),), max_tokens)


def conversations(count: int, gap: float = 0.0, turns: int = 1, pause: float = 0.0) -> list[Conversation]:
    return [Conversation((turn(),) * turns, index * gap, pause) for index in range(count)]


def load(
    server: OpenAIServer,
    drive: Callable[[Target], object],
    chat: bool = False,
    api_key: str | None = None,
    timeout: float = 30.0,
) -> Run:
    async def run() -> Run:
        async with opened(server.url, None, chat, api_key, timeout) as target:
            return await drive(target)

    return asyncio.run(run())


def ignore(_: object) -> None:
    pass


def one_by_one(count: int) -> Callable[[Target], object]:
    return lambda target: closed_loop(target, conversations(count), 1, ignore)


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("per_event", [1, 2])
def test_whole_answers(chat: bool, per_event: int) -> None:
    with openai_server(Behaviour(per_event=per_event)) as server:
        outcomes = load(server, one_by_one(3), chat).outcomes
    assert [outcome.error for outcome in outcomes] == [None] * 3
    assert [outcome.output_tokens for outcome in outcomes] == [TOKENS] * 3
    assert [len(outcome.events) for outcome in outcomes] == [-(-TOKENS // per_event)] * 3
    assert [outcome.prompt_tokens for outcome in outcomes] == [100] * 3


def test_without_usage_the_events_are_counted() -> None:
    with openai_server(Behaviour(tells_usage=False)) as server:
        (outcome,) = load(server, one_by_one(1)).outcomes
    assert (outcome.error, outcome.output_tokens, outcome.prompt_tokens) == (None, TOKENS, 0)


@pytest.mark.parametrize(
    ("fault", "error", "tokens"),
    [
        ("503", "status 503", 0),
        ("reset", "connection", 0),
        ("cut", "broken stream", 1),
        ("garbage", "broken stream", 1),
        ("error", "broken stream", 1),
        ("no finish", "no finish", TOKENS),
        ("silence", "timeout", 0),
    ],
)
def test_every_kind_of_failure_has_its_name_and_spares_the_next_request(fault: str, error: str, tokens: int) -> None:
    with openai_server(Behaviour(faults=[fault])) as server:
        failed, whole = load(server, one_by_one(2), timeout=1.0).outcomes
    assert (failed.error, len(failed.events)) == (error, tokens)
    assert whole.error is None


def test_nobody_there_is_an_outcome_during_the_run_and_an_error_before() -> None:
    with openai_server() as server:

        async def drive(target: Target) -> Run:
            await asyncio.to_thread(server.stop)
            return await closed_loop(target, conversations(1), 1, ignore)

        assert [outcome.error for outcome in load(server, drive).outcomes] == ["connection"]
        with pytest.raises(UserError, match="no server answers"):
            load(server, one_by_one(1))


def test_latencies_are_those_of_the_server() -> None:
    with openai_server(Behaviour(first=0.2, gap=0.1)) as server:
        (outcome,) = load(server, one_by_one(1)).outcomes
    assert outcome.ttft == pytest.approx(0.2, abs=0.15)
    assert min(outcome.itls) > 0.03
    assert outcome.tpot == pytest.approx(0.1, abs=0.05)
    assert outcome.e2e == pytest.approx(0.6, abs=0.3)


def test_an_open_loop_does_not_wait_for_answers_and_a_closed_one_does() -> None:
    with openai_server(Behaviour(first=0.5)) as server:
        planned = conversations(6, gap=0.02)
        outcomes = load(server, lambda target: open_loop(target, planned, ignore)).outcomes
        assert server.under_way == 6
        scheduled = [outcome.scheduled - outcomes[0].scheduled for outcome in outcomes]
        assert scheduled == pytest.approx([each.start for each in planned])
    with openai_server(Behaviour(first=0.02)) as server:
        load(server, lambda target: closed_loop(target, conversations(6), 2, ignore))
        assert server.under_way == 2


def test_a_late_generator_does_not_hide_the_wait() -> None:
    """The loop is held up for a while, as a busy machine would: the latency of what was due meanwhile includes it."""

    async def drive(target: Target) -> Run:
        asyncio.get_running_loop().call_later(0.08, time.sleep, 0.4)
        return await open_loop(target, conversations(2, gap=0.1), ignore)

    with openai_server() as server:
        _, late = load(server, drive).outcomes
    assert late.sent - late.scheduled > 0.2
    assert late.ttft > 0.2


def test_turns_follow_one_another_after_a_pause() -> None:
    with openai_server(Behaviour(first=0.05)) as server:
        planned = conversations(1, turns=3, pause=0.1)
        outcomes = load(server, lambda target: open_loop(target, planned, ignore)).outcomes
    assert len(server.streamed) == 3
    for before, after in pairwise(outcomes):
        assert after.scheduled == pytest.approx(before.ended + 0.1)


@pytest.mark.parametrize("overhead", [0, 7])
@pytest.mark.parametrize("takes_ids", [True, False])
@pytest.mark.parametrize("chat", [True, False])
def test_prompts_have_the_planned_number_of_tokens_by_the_servers_own_count(
    overhead: int, takes_ids: bool, chat: bool
) -> None:
    with openai_server(Behaviour(overhead=overhead, takes_ids=takes_ids)) as server:
        (outcome,) = load(server, one_by_one(1), chat).outcomes
    assert outcome.prompt_tokens == 100
    assert isinstance(server.streamed[0].get("prompt"), list) is (takes_ids and not chat)


def test_a_server_that_does_not_know_ignore_eos_is_not_sent_it() -> None:
    for known in (True, False):
        with openai_server(Behaviour(knows_ignore_eos=known)) as server:
            load(server, one_by_one(1))
        assert ("ignore_eos" in server.streamed[0]) is known
        assert server.streamed[0]["model"] == MODEL


def test_a_server_that_hangs_before_the_run_is_an_error() -> None:
    with openai_server(Behaviour(hangs=True)) as server, pytest.raises(UserError, match="does not answer within"):
        load(server, one_by_one(1), timeout=0.2)


def test_words_that_are_several_tokens_each_are_taken_fewer() -> None:
    with openai_server(Behaviour(takes_ids=False, tokens_per_word=2, overhead=4)) as server:
        (outcome,) = load(server, one_by_one(1)).outcomes
    assert len(server.streamed[0]["prompt"].split()) == 48
    assert outcome.prompt_tokens == 100


def test_the_api_key_is_sent() -> None:
    with openai_server(Behaviour(api_key="secret")) as server:
        assert load(server, one_by_one(1), api_key="secret").outcomes[0].error is None
        with pytest.raises(UserError, match="status 401: a key is needed"):
            load(server, one_by_one(1))


def exchange_with(answer: bytes, requests: int = 1) -> tuple[list[Response], bytes, int]:
    """What comes of requests to a server that sends `answer` and hangs up: responses, bodies, connections."""
    connections = 0
    bodies: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async def run() -> list[Response]:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            pool = Pool(urlsplit(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
            return [
                await pool.exchange(b"GET / HTTP/1.1\r\n\r\n", lambda body, _: bodies.append(body))
                for _ in range(requests)
            ]

    return asyncio.run(run()), b"".join(bodies), connections


def test_a_body_may_last_until_the_server_hangs_up() -> None:
    responses, body, connections = exchange_with(b"HTTP/1.0 200 OK\r\n\r\none, two", requests=2)
    assert [response.status for response in responses] == [200, 200]
    assert (body, connections) == (b"one, two" * 2, 2)


def test_a_body_that_ends_before_its_length_is_broken() -> None:
    with pytest.raises(BrokenResponse):
        exchange_with(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nnine")


def test_the_body_of_an_error_is_kept() -> None:
    (response,), body, _ = exchange_with(b"HTTP/1.1 429 x\r\nContent-Length: 4\r\n\r\nlate")
    assert (response.status, response.body, body) == (429, b"late", b"")


def test_a_connection_is_used_again() -> None:
    with openai_server() as server:
        load(server, one_by_one(5))
    assert server.connections == 1


STREAM = (
    b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\r\n\r\n'
    b": a comment\n\n"
    b'data: {"choices":[{"index":0,"delta":{"reasoning_content":"hm"},"finish_reason":null}]}\n\n'
    b'data: {"choices":[{"index":0,"delta":{"content":""},"finish_reason":null}]}\n\n'
    b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0}]},"finish_reason":null}],"usage":null}\n\n'
    b'data: {"choices":[{"index":0,"delta":{"content":"\xc3\xa9\\n\\n"},"finish_reason":null}]}\n\n'
    b'data:{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":8,'
    b'"prompt_tokens_details":{"cached_tokens":4}}}\n\n'
    b"data: [DONE]\n\n"
)


@pytest.mark.parametrize("size", [1, 2, 7, 64, 1 << 20])
def test_a_stream_reads_the_same_however_it_is_cut(size: int) -> None:
    reader = EventReader()
    for start in range(0, len(STREAM), size):
        reader.feed(STREAM[start : start + size], float(start + size))
    assert len(reader.times) == 4  # reasoning, a token without text yet, a tool call, content
    assert list(reader.times) == sorted(reader.times)
    assert reader.failure is None
    assert reader.finished_at is not None
    assert reader.usage is not None
    assert (reader.usage.completion_tokens, reader.usage.cached_tokens) == (8, 4)


@pytest.mark.parametrize("event", [b'{"error": {"message": "x"}}', b"no json", b'{"choices": 3}'])
def test_an_event_that_is_an_error_or_unreadable_breaks_the_stream(event: bytes) -> None:
    reader = EventReader()
    reader.feed(b"data: " + event + b"\n\n", 1.0)
    assert reader.failure is not None
