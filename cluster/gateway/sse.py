"""Server-sent events: the status goes out with the first event, and an error after that is an event of its own."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from cluster.gateway.errors import ApiError, error_object

log = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"
quote = msgspec.json.encode  # a JSON string, several times faster than json.dumps


def event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def named_event(name: str, value: dict[str, Any]) -> bytes:
    return b"event: " + name.encode() + b"\n" + event(value)


class EventStream(Response):
    """Sends `first`, which exists already, then the rest of `events`. An ApiError becomes the last event."""

    media_type = "text/event-stream"

    def __init__(self, first: bytes, events: AsyncGenerator[bytes]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._first = first
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": self._first, "more_body": True})
            async for chunk in self._events:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except ApiError as error:
            await send({"type": "http.response.body", "body": event(error.body), "more_body": True})
        except Exception:
            log.exception("a stream ended by an unexpected error")
            body = event(error_object("The server failed; try again.", "server_error"))
            await send({"type": "http.response.body", "body": body, "more_body": True})
        finally:
            await self._events.aclose()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def stream(events: AsyncGenerator[bytes]) -> EventStream:
    """Wait for the first event, so that what fails before it is answered with a status of its own."""
    return EventStream(await anext(events), events)
