"""A client that hangs up ends its request, whatever state it is in: queued, computing, streaming or not."""

from __future__ import annotations

import asyncio

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cluster.gateway.errors import ApiError, body_at

ABSURD = 16  # times the limit


class CancelOnDisconnect:
    """ASGI middleware: reads the body (up to a limit), runs the application as a task, and cancels it when the
    client goes away. Cancellation is what aborts generations."""

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        try:
            body = await self._read_body(receive)
        except ApiError as error:
            refusal = JSONResponse(body_at(scope["path"], error), error.status, {"Connection": "close"})
            await refusal(scope, receive, send)
            return
        if body is None:
            return
        replay = _Replay(body)
        work = asyncio.ensure_future(self._app(scope, replay.receive, send))
        leaving = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({work, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            leaving.cancel()
            if not work.done():
                work.cancel()
                await asyncio.wait({work})

    async def _read_body(self, receive: Receive) -> bytes | None:
        """None if the client left before it had sent everything. A body over the limit is read on without being kept,
        since a client that is still sending would not hear the answer, and cut off where that becomes absurd."""
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            size += len(message.get("body", b""))
            more = message.get("more_body", False)
            if size > self._max_body_bytes:
                chunks.clear()
            else:
                chunks.append(message.get("body", b""))
            if not more or size > ABSURD * self._max_body_bytes:
                break
        if size > self._max_body_bytes:
            raise ApiError(413, f"The request body is larger than {self._max_body_bytes} bytes.")
        return b"".join(chunks)


class _Replay:
    """Gives the application the body that was read for it."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body

    async def receive(self) -> Message:
        if self._body is None:
            return {"type": "http.disconnect"}
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
