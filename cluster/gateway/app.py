"""The gateway's routes, and what every route has in common: errors, disconnects, the body limit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from cluster.gateway.anthropic import add_messages
from cluster.gateway.auth import KeyRing
from cluster.gateway.body import check_object, read_object
from cluster.gateway.caller import Caller
from cluster.gateway.chat import answer_chat, prepare_chat
from cluster.gateway.chat_protocol import ChatRequest
from cluster.gateway.completions import answer_completion, prepare_completion
from cluster.gateway.disconnect import CancelOnDisconnect
from cluster.gateway.embedder import EmbedderService
from cluster.gateway.embeddings import add_embeddings
from cluster.gateway.entrance import json_body
from cluster.gateway.errors import ApiError, body_at, error_object
from cluster.gateway.farewell import FarewellMiddleware
from cluster.gateway.guard import PROBES, Guard
from cluster.gateway.limits import RATE_HEADERS
from cluster.gateway.openapi import openapi
from cluster.gateway.protocol import CompletionRequest, SamplingFields
from cluster.gateway.requests import Job
from cluster.gateway.responses import add_responses
from cluster.gateway.service import GatewayService, ModelService
from cluster.gateway.tokenize import add_tokenize
from cluster.metrics import UNKNOWN_MODEL

Endpoint = Callable[..., Awaitable[Response]]
Body = TypeVar("Body", bound=SamplingFields)
Prepare = Callable[[GatewayService, Body, Caller, float], Awaitable[Job[Body]]]

EXPOSED_HEADERS = ("Retry-After", *RATE_HEADERS)  # what scripts of other origins may read
HEALTH_SECONDS = 20.0  # a large prefill on a slow CPU is a long step, and no illness


def build_app(gateway: GatewayService) -> FastAPI:
    """All endpoints of one gateway."""
    app = FastAPI(title="Mobula", docs_url="/docs", redoc_url=None)
    _add_door(app, gateway)
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(Exception, _on_unexpected)
    _add_inference(app, gateway)
    add_embeddings(app, gateway)
    add_tokenize(app, gateway)
    add_messages(app, gateway)
    add_responses(app, gateway)
    _add_operations(app, gateway)
    has_keys = bool(gateway.settings.door.keys)
    app.openapi = lambda: openapi(app, _served(gateway), has_keys)  # type: ignore[method-assign]
    return app


def _add_door(app: FastAPI, gateway: GatewayService) -> None:
    """What a request passes before it is routed; the last one added is the first to see it."""
    door = gateway.settings.door
    app.add_middleware(CancelOnDisconnect, max_body_bytes=gateway.settings.max_body_bytes)
    open_paths = PROBES | {"/metrics"} if door.public_metrics else PROBES
    app.add_middleware(Guard, keys=KeyRing(door.keys), open_paths=open_paths, metrics=gateway.metrics)
    if door.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=door.origins,
            allow_methods=("GET", "HEAD", "POST"),
            allow_headers=("*",),
            expose_headers=EXPOSED_HEADERS,
        )
    app.add_middleware(FarewellMiddleware, farewell=gateway.farewell)


def _add_inference(app: FastAPI, gateway: GatewayService) -> None:
    @app.post("/v1/chat/completions", openapi_extra=json_body(ChatRequest))
    async def chat_completions(request: Request) -> Response:
        return await answer_chat(await _job(gateway, request, ChatRequest, prepare_chat))

    @app.post("/v1/completions", openapi_extra=json_body(CompletionRequest))
    async def completions(request: Request) -> Response:
        return await answer_completion(await _job(gateway, request, CompletionRequest, prepare_completion))

    @_get(app, "/v1/models")
    async def models() -> Response:
        return JSONResponse({"object": "list", "data": [_model_object(gateway, name) for name in _served(gateway)]})

    @_get(app, "/v1/models/{name:path}")
    async def one_model(name: str) -> Response:
        if not name:
            raise ApiError(404, "There is no model without a name; the list of models is at /v1/models.")
        return JSONResponse(_model_object(gateway, name if name in gateway.embedders else gateway.model(name).id))


def _add_operations(app: FastAPI, gateway: GatewayService) -> None:
    @_get(app, "/health")
    async def health() -> Response:
        """200 only if an engine of every model has just answered from its step loop."""
        faults = await asyncio.gather(*map(_fault, _served(gateway).values()))
        if message := " ".join(filter(None, faults)):
            return JSONResponse(error_object(message, "server_error"), 503)
        return JSONResponse({"status": "ok"})

    @_get(app, "/ready")
    async def ready() -> Response:
        """200 as soon as this gateway takes requests, with what the models' engines said of themselves when they were
        first met. Asks no engine, so it costs little and does not tell whether they live: /health does."""
        models = [
            {
                "id": model.id,
                "dtype": model.info.dtype,
                "max_model_len": model.info.max_model_len,
                "kv_blocks": model.info.num_blocks,
                "block_size": model.info.block_size,
                "start_seconds": dict(model.info.stages),
                "ranks": msgspec.to_builtins(model.info.ranks),
            }
            for model in gateway.models.values()
        ]
        embedders = [
            {
                "id": model.id,
                "dtype": model.info.dtype,
                "max_model_len": model.info.max_model_len,
                "dimensions": model.info.size,
                "pooling": model.info.pooling,
                "start_seconds": dict(model.info.stages),
            }
            for model in gateway.embedders.values()
        ]
        return JSONResponse({"status": "ready", "models": models, "embedding_models": embedders})

    @_get(app, "/metrics")
    async def metrics() -> Response:
        return PlainTextResponse(gateway.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def _job(gateway: GatewayService, request: Request, kind: type[Body], prepare: Prepare[Body]) -> Job[Body]:
    """Raises ApiError for a request that cannot be served, and counts it; a job's generations count themselves."""
    arrival = time.perf_counter()
    caller: Caller = request.state.caller
    value: dict[str, Any] = {}
    try:
        await gateway.limits.admit(caller)
        value = read_object(await request.body(), request.headers)
        job = await prepare(gateway, check_object(value, kind), caller, arrival)
        await caller.reserve(job.reserved_tokens)
        return job
    except ApiError:
        model = value.get("model")
        known = model if isinstance(model, str) and model in gateway.models else UNKNOWN_MODEL
        gateway.metrics.requests.labels(known, "refused").inc()
        raise


def _served(gateway: GatewayService) -> dict[str, ModelService | EmbedderService]:
    return {**gateway.models, **gateway.embedders}


async def _fault(model: ModelService | EmbedderService) -> str | None:
    """What keeps a model from being healthy, in one sentence; errors may carry a whole traceback."""
    try:
        await asyncio.wait_for(model.port.check(), HEALTH_SECONDS)
    except Exception as error:
        return f"No engine of {model.id} has passed the health check ({type(error).__name__})."
    return None


def _get(app: FastAPI, path: str) -> Callable[[Endpoint], Endpoint]:
    """A route for GET, and for HEAD, which probes use."""

    def add(endpoint: Endpoint) -> Endpoint:
        app.add_api_route(path, endpoint, methods=["GET"])
        app.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False)
        return endpoint

    return add


def _model_object(gateway: GatewayService, name: str) -> dict[str, Any]:
    model = _served(gateway)[name]
    return {
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "mobula",
        "max_model_len": model.info.max_model_len,
    }


async def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(body_at(request.url.path, error), error.status, error.headers)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    words = {404: f"There is no {request.url.path[:200]} here.", 405: f"{request.method} is not allowed here."}
    told = ApiError(error.status_code, words.get(error.status_code, str(error.detail)))
    return JSONResponse(body_at(request.url.path, told), error.status_code, error.headers)


async def _on_unexpected(request: Request, error: Exception) -> Response:
    """The server drops the connection after this, which the client has to know."""
    told = ApiError(500, "The server failed; try again.", kind="server_error")
    return JSONResponse(body_at(request.url.path, told), 500, {"Connection": "close"})
