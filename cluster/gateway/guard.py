"""The door: nobody passes without a key but to the few open paths.

It stands before routing and knows no routes, so there is no spelling of a path, no method and no protocol that goes
around it: what is not literally open is shut.
"""

from __future__ import annotations

from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cluster.gateway.auth import KeyRing
from cluster.gateway.caller import Caller
from cluster.gateway.errors import ApiError, body_at
from cluster.metrics import UNKNOWN_MODEL, GatewayMetrics

PROBES = frozenset({"/health", "/ready"})

REFUSAL = ApiError(
    401,
    "A valid API key is needed: send it as 'Authorization: Bearer KEY'.",
    code="invalid_api_key",
    headers={"WWW-Authenticate": 'Bearer realm="mobula"'},
)


SESSION_HEADER = "x-session-id"  # requests of one session had better meet the same replica


class Guard:
    """ASGI middleware. What stands behind it finds the `Caller` in the request's state; when the answer has been sent,
    or the request has ended in whatever other way, the caller gives back what it holds. Preflights never carry a
    key: OPTIONS passes, as nothing behind it does any work."""

    def __init__(self, app: ASGIApp, keys: KeyRing, open_paths: Collection[str], metrics: GatewayMetrics) -> None:
        self._app = app
        self._keys = keys
        self._open_paths = open_paths
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._is_open(scope):
            await self._app(scope, receive, send)
            return
        name = self._keys.caller(Headers(scope=scope))
        if name is None:
            self._metrics.refusals.labels(UNKNOWN_MODEL, "api_key").inc()
            refusal = JSONResponse(body_at(scope["path"], REFUSAL), REFUSAL.status, REFUSAL.headers)
            await refusal(scope, receive, send)
            return
        caller = Caller(name, Headers(scope=scope).get(SESSION_HEADER))
        scope.setdefault("state", {})["caller"] = caller
        try:
            await self._app(scope, receive, _with_headers(caller, send))
        finally:
            await caller.leave()

    def _is_open(self, scope: Scope) -> bool:
        if scope["type"] != "http":
            return False
        return scope["method"] == "OPTIONS" or scope["path"] in self._open_paths


def _with_headers(caller: Caller, send: Send) -> Send:
    """Adds what the caller is to know of its limits to the response's headers."""

    async def send_on(message: Message) -> None:
        if message["type"] == "http.response.start" and caller.headers:
            MutableHeaders(scope=message).update(caller.headers)
        await send(message)

    return send_on
