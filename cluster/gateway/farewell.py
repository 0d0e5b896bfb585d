"""How a gateway leaves without cutting a connection under a client's hands.

A client that keeps its connection open would meet a closed one with its next request. So a gateway that is about to go
answers what still comes over open connections with "Connection: close", which sends clients to another gateway by
themselves, and goes when nothing has come for a while.
"""

from __future__ import annotations

import asyncio
import time

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

QUIET_SECONDS = 1.0


class Farewell:
    """One gateway's. Once it `is_leaving`, every response ends its connection."""

    def __init__(self) -> None:
        self.is_leaving = False
        self._active = 0
        self._last_end = 0.0

    async def wait_for_quiet(self) -> None:
        """Leave: return when no request is under way and none has come for `QUIET_SECONDS`."""
        self.is_leaving = True
        self._last_end = time.monotonic()
        while self._active or time.monotonic() - self._last_end < QUIET_SECONDS:
            await asyncio.sleep(QUIET_SECONDS / 10)

    def begin(self) -> None:
        self._active += 1

    def end(self) -> None:
        self._active -= 1
        self._last_end = time.monotonic()


class FarewellMiddleware:
    """Counts requests for a `Farewell`, and marks the responses."""

    def __init__(self, app: ASGIApp, farewell: Farewell) -> None:
        self._app = app
        self._farewell = farewell

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start" and self._farewell.is_leaving:
                MutableHeaders(scope=message)["Connection"] = "close"
            await send(message)

        self._farewell.begin()
        try:
            await self._app(scope, receive, send_on)
        finally:
            self._farewell.end()
