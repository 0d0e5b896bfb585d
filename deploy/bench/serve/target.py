"""A server under load: turns a planned request into bytes, and what comes back into an outcome."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import SplitResult, urlsplit

import msgspec

from deploy.bench.serve.dialect import Dialect, learn_dialect, message_of
from deploy.bench.serve.events import EventReader
from deploy.bench.serve.http import BrokenResponse, Pool, Response
from deploy.bench.serve.outcome import Outcome
from deploy.bench.serve.workload import Turn
from deploy.errors import UserError

CONNECTION, BROKEN, UNFINISHED, TIMEOUT = "connection", "broken stream", "no finish", "timeout"


class Address:
    """Where a server is, and how to speak to it: bytes in, bytes out."""

    def __init__(self, url: str, api_key: str | None, timeout: float) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self.timeout = timeout
        parts = _split(self.url)
        self.pool = Pool(parts)
        self._prefix = parts.path
        self._headers = f"Host: {parts.netloc}\r\nContent-Type: application/json\r\n"
        if api_key:
            self._headers += f"Authorization: Bearer {api_key}\r\n"

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        head = f"{method} {self._prefix}{path} HTTP/1.1\r\n{self._headers}Content-Length: {len(body)}\r\n\r\n"
        return head.encode() + body

    async def ask(self, method: str, path: str, body: bytes = b"") -> Response:
        """The whole response. Raises UserError if there is none."""
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(self.timeout):
                response = await self.pool.exchange(
                    self.request(method, path, body), lambda data, _: parts.append(data)
                )
        except TimeoutError as error:
            raise UserError(f"the server at {self.url} does not answer within {self.timeout:g} s") from error
        except OSError as error:
            raise UserError(f"no server answers at {self.url}: {error}") from error
        return Response(response.status, b"".join(parts) or response.body)


class Target:
    """One model of one server."""

    def __init__(self, address: Address, dialect: Dialect) -> None:
        self.dialect = dialect
        self.url = address.url
        self._address = address

    def encode(self, turn: Turn) -> bytes:
        return self._address.request("POST", self.dialect.path, self.dialect.body(turn))

    async def send(self, request: bytes, scheduled: float) -> Outcome:
        """Never raises for what a server or network does: that is an outcome, too."""
        reader = EventReader()
        sent = time.perf_counter()
        try:
            async with asyncio.timeout(self._address.timeout):
                response = await self._address.pool.exchange(request, reader.feed)
            error = _verdict(response, reader)
        except BrokenResponse:
            error = BROKEN
        except TimeoutError:
            error = TIMEOUT
        except OSError:
            error = CONNECTION
        return _outcome(reader, scheduled, sent, time.perf_counter(), error)


@asynccontextmanager
async def opened(url: str, model: str | None, chat: bool, api_key: str | None, timeout: float) -> AsyncIterator[Target]:
    """Find out what the server serves and understands. Raises UserError if it is no such server."""
    address = Address(url, api_key, timeout)
    try:
        name = model or await _first_model(address)
        dialect = await learn_dialect(name, chat, lambda path, body: address.ask("POST", path, body))
        yield Target(address, dialect)
    finally:
        address.pool.close()


def _split(url: str) -> SplitResult:
    """Raises UserError if this is no address."""
    with suppress(ValueError):  # of a port that is no port
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts
    raise UserError(f"{url} is no address of a server: it must be like http://127.0.0.1:8000")


async def _first_model(address: Address) -> str:
    response = await address.ask("GET", "/v1/models")
    if response.status != 200:
        raise UserError(f"{address.url} refused with status {response.status}: {message_of(response.body)}")
    try:
        return str(msgspec.json.decode(response.body)["data"][0]["id"])
    except (msgspec.DecodeError, KeyError, IndexError, TypeError) as error:
        raise UserError(f"{address.url} does not say which models it serves: name one with --model") from error


def _verdict(response: Response, reader: EventReader) -> str | None:
    if response.status != 200:
        return f"status {response.status}"
    if reader.failure is not None:
        return BROKEN
    return None if reader.finished_at is not None else UNFINISHED


def _outcome(reader: EventReader, scheduled: float, sent: float, ended: float, error: str | None) -> Outcome:
    events, usage = reader.times, reader.usage
    output_tokens = usage.completion_tokens if usage else len(events)
    if not events and output_tokens and reader.finished_at is not None:
        events.append(reader.finished_at)
    return Outcome(
        scheduled=scheduled,
        sent=sent,
        ended=ended,
        events=events,
        prompt_tokens=usage.prompt_tokens if usage else 0,
        cached_tokens=usage.cached_tokens if usage else 0,
        output_tokens=output_tokens,
        error=error,
    )
