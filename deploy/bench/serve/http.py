"""HTTP/1.1 as cheap as it gets on asyncio, because the generator often shares its cores with the server it measures.

Bytes go from the socket to httptools' parser and on to whoever reads the body, stamped with the time at which they
left the kernel. httpx costs about seven times as much CPU for each event.
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


class Connection(asyncio.Protocol):
    """One connection, one exchange at a time."""

    def __init__(self) -> None:
        self.idle_since = 0.0
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[Response] | None = None
        self._now = 0.0

    async def exchange(self, request: bytes, sink: Sink) -> Response:
        """Send a request and pass the body of a success on. Raises ConnectionError."""
        if self._transport is None:
            raise ConnectionError("the server closed the connection")
        self._done = asyncio.get_running_loop().create_future()
        self._sink = sink
        self._begun, self._status, self._body, self._delimited = False, 0, b"", False
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(request)
        return await self._done

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    @property
    def usable(self) -> bool:
        return self._transport is not None and self._parser.should_keep_alive()

    # From asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter()
        if self._done is None or self._done.done():
            return
        self._begun = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(BrokenResponse(f"this is no HTTP: {error}"))
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._done is None or self._done.done():
            return
        if self._status and not self._delimited and error is None:
            self._done.set_result(Response(self._status, self._body))  # a body that lasts until the connection ends
            return
        kind = BrokenResponse if self._begun else ConnectionError
        self._fail(kind(str(error or "the server closed the connection")))

    # From the parser.

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
        if self._done is not None and not self._done.done():
            self._done.set_result(Response(self._status, self._body))

    def _fail(self, error: ConnectionError) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)


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
