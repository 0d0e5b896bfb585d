"""HTTP/1.1 as cheap as it gets, because the generator often shares its cores with the server that it measures.

Bytes go from the socket to httptools' parser and on to whoever reads the body, stamped with the time at which they
were read. On uvloop that takes a small part of the CPU that httpx needs for each event.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast
from urllib.parse import SplitResult

import httptools

IDLE_SECONDS = 2.0  # a connection that idled for longer may just be closed by the server: it is not used again

Sink = Callable[[bytes, float], None]  # bytes of a body, and when they arrived


class BrokenResponse(ConnectionError):
    """The connection ended, or what came was no HTTP, after a response had begun."""


@dataclass(frozen=True, slots=True)
class Response:
    """`body` is kept of an error only; that of a success went to the sink."""

    status: int
    body: bytes


class _Exchange:
    """One response as it arrives; the methods `on_...` are called by the parser."""

    def __init__(self, sink: Sink) -> None:
        self.response: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self.keep_alive = False
        self._parser = httptools.HttpResponseParser(self)
        self._sink = sink
        self._now = 0.0
        self._begun = False
        self._delimited = False
        self._status = 0
        self._body = b""

    def feed(self, data: bytes, now: float) -> None:
        self._begun, self._now = True, now
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"this is no HTTP: {error}")

    def end(self, error: Exception | None) -> None:
        """The connection is lost: a fault, unless the body was to last until then."""
        if self._status and not self._delimited and error is None:
            self._complete()
        self._fail(str(error or "the server closed the connection"))

    def on_header(self, name: bytes, _: bytes) -> None:
        self._delimited = self._delimited or name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self._status == 200:
            self._sink(body, self._now)
        else:
            self._body += body

    def on_message_complete(self) -> None:
        self.keep_alive = self._parser.should_keep_alive()  # it does not know any more once this returns
        self._complete()

    def _complete(self) -> None:
        if not self.response.done():
            self.response.set_result(Response(self._status, self._body))

    def _fail(self, text: str) -> None:
        if not self.response.done():
            self.response.set_exception(BrokenResponse(text) if self._begun else ConnectionError(text))


class Connection(asyncio.Protocol):
    """One connection, one exchange at a time."""

    def __init__(self) -> None:
        self.idle_since = 0.0
        self._transport: asyncio.Transport | None = None
        self._exchange: _Exchange | None = None

    async def exchange(self, request: bytes, sink: Sink) -> Response:
        """Send a request and pass the body of a success on. Raises ConnectionError."""
        if self._transport is None:
            raise ConnectionError("the server closed the connection")
        self._exchange = _Exchange(sink)
        self._transport.write(request)
        return await self._exchange.response

    @property
    def usable(self) -> bool:
        """Whether another exchange may follow the last one."""
        return self._transport is not None and self._exchange is not None and self._exchange.keep_alive

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._exchange is not None:
            self._exchange.feed(data, time.perf_counter())

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._exchange is not None:
            self._exchange.end(error)


class Pool:
    """Connections to one server, as many as there are requests under way; the last used is used first."""

    def __init__(self, url: SplitResult) -> None:
        self._host = url.hostname or ""
        self._tls = ssl.create_default_context() if url.scheme == "https" else None
        self._port = url.port or (443 if self._tls else 80)
        self._idle: list[Connection] = []

    async def exchange(self, request: bytes, sink: Sink) -> Response:
        """Raises ConnectionError or OSError. A request that is cancelled takes its connection with it."""
        connection = self._reusable() or await self._connect()
        try:
            response = await connection.exchange(request, sink)
        except BaseException:
            connection.close()
            raise
        if connection.usable:
            connection.idle_since = time.perf_counter()
            self._idle.append(connection)
        else:
            connection.close()
        return response

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _reusable(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and time.perf_counter() - connection.idle_since < IDLE_SECONDS:
                return connection
            connection.close()
        return None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, self._host, self._port, ssl=self._tls)
        return connection
