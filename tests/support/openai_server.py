"""A stand-in for any OpenAI-compatible server, whose timing and faults a test decides."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

MODEL = "stand-in"


@dataclass
class Behaviour:
    """Seconds to the first event and between events; tokens in each event; tokens that the server adds to a prompt.

    `faults` are what happens to streamed requests in the order of their arrival: "503", "reset" before the status,
    "cut" or "garbage" after the first event, "error" event, "no finish", "silence"; "" is a whole answer.
    """

    first: float = 0.0
    gap: float = 0.0
    per_event: int = 1
    overhead: int = 0
    tokens_per_word: int = 1
    hangs: bool = False
    takes_ids: bool = True
    knows_ignore_eos: bool = True
    tells_usage: bool = True
    api_key: str | None = None
    faults: list[str] = field(default_factory=list)


@dataclass
class OpenAIServer:
    """`streamed` are the bodies of streamed requests, `under_way` the largest number of them at once. After `stop`
    nobody answers any more."""

    behaviour: Behaviour
    url: str = ""
    stop: Callable[[], None] = field(init=False)
    streamed: list[dict[str, Any]] = field(default_factory=list)
    under_way: int = 0
    connections: int = 0
    _now: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                path, headers, body = await _read_request(reader)
                await self._answer(path, headers, body, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _answer(self, path: str, headers: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        wanted = self.behaviour.api_key
        if self.behaviour.hangs:
            await asyncio.sleep(60)
        if wanted is not None and f"Authorization: Bearer {wanted}\r\n" not in headers:
            _respond(writer, 401, {"error": {"message": "a key is needed"}})
        elif path == "/v1/models":
            _respond(writer, 200, {"data": [{"id": MODEL}]})
        elif not self.behaviour.knows_ignore_eos and "ignore_eos" in body:
            _respond(writer, 400, {"error": {"message": "ignore_eos is not known"}})
        elif not self.behaviour.takes_ids and isinstance(body.get("prompt"), list):
            _respond(writer, 422, {"detail": "prompt must be a text"})
        elif not body.get("stream"):
            usage = self._usage(body, 1) if self.behaviour.tells_usage else {}
            _respond(writer, 200, {"choices": [{"text": "x", "finish_reason": "length"}], **usage})
        else:
            await self._count_stream(path, body, writer)

    async def _count_stream(self, path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        self.streamed.append(body)
        index = len(self.streamed) - 1
        faults = self.behaviour.faults
        self._now += 1
        self.under_way = max(self.under_way, self._now)
        try:
            await self._stream(path, body, faults[index] if index < len(faults) else "", writer)
        finally:
            self._now -= 1

    async def _stream(self, path: str, body: dict[str, Any], fault: str, writer: asyncio.StreamWriter) -> None:
        if fault == "503":
            _respond(writer, 503, {"error": {"message": "overloaded"}})
            return
        if fault == "silence":
            await asyncio.sleep(60)
        if fault == "reset":
            writer.transport.abort()
            raise ConnectionError
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        chat = path == "/v1/chat/completions"
        await asyncio.sleep(self.behaviour.first)
        if chat:
            _event(writer, _chunk({"delta": {"role": "assistant", "content": ""}}))
        for number in range(0, body["max_tokens"], self.behaviour.per_event):
            if number:
                await asyncio.sleep(self.behaviour.gap)
            _event(writer, _chunk({"delta": {"content": "x"}} if chat else {"text": "x"}))
            if fault in ("cut", "garbage"):
                await writer.drain()
                if fault == "garbage":
                    writer.write(b"this is no chunk\r\n")
                raise ConnectionError
            if fault == "error":
                _event(writer, {"error": {"message": "it broke"}})
                break
        else:
            if fault != "no finish":
                end = {"delta": {}} if chat else {"text": ""}
                _event(writer, _chunk(end | {"finish_reason": "length"}))
            if self.behaviour.tells_usage:
                _event(writer, {"choices": [], **self._usage(body, body["max_tokens"])})
            _write_chunk(writer, b"data: [DONE]\n\n")
        _write_chunk(writer, b"")

    def _usage(self, body: dict[str, Any], output_tokens: int) -> dict[str, Any]:
        prompt = body["messages"][0]["content"] if "messages" in body else body["prompt"]
        words = prompt if isinstance(prompt, list) else prompt.split()
        prompt_tokens = self.behaviour.tokens_per_word * len(words) + self.behaviour.overhead
        return {"usage": {"prompt_tokens": prompt_tokens, "completion_tokens": output_tokens}}


@contextmanager
def openai_server(behaviour: Behaviour | None = None) -> Iterator[OpenAIServer]:
    """The server runs on an event loop in a thread of its own."""
    server, loop = OpenAIServer(behaviour or Behaviour()), asyncio.new_event_loop()
    listener = loop.run_until_complete(asyncio.start_server(server.serve, "127.0.0.1", 0))
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def close() -> None:
        listener.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    server.stop = lambda: asyncio.run_coroutine_threadsafe(close(), loop).result()
    try:
        yield server
    finally:
        server.stop()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _read_request(reader: asyncio.StreamReader) -> tuple[str, str, dict[str, Any]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    stated = re.search(r"content-length: *(\d+)", head, re.IGNORECASE)
    length = int(stated[1]) if stated else 0
    body = await reader.readexactly(length)
    return head.split(" ")[1], head, json.loads(body) if body else {}


def _respond(writer: asyncio.StreamWriter, status: int, answer: dict[str, Any]) -> None:
    body = json.dumps(answer).encode()
    writer.write(b"HTTP/1.1 %d x\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))


def _chunk(choice: dict[str, Any]) -> dict[str, Any]:
    return {"choices": [{"index": 0, "finish_reason": None, **choice}], "usage": None}


def _event(writer: asyncio.StreamWriter, value: dict[str, Any]) -> None:
    _write_chunk(writer, b"data: " + json.dumps(value).encode() + b"\n\n")


def _write_chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))
