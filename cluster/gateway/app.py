"""The gateway's routes, and what every route has in common: errors, disconnects, the body limit."""

from __future__ import annotations

import time
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException

from cluster.gateway.body import parse_body
from cluster.gateway.chat import chat_completion
from cluster.gateway.completions import completion
from cluster.gateway.disconnect import CancelOnDisconnect
from cluster.gateway.errors import ApiError, error_object
from cluster.gateway.protocol import ChatRequest, CompletionRequest
from cluster.gateway.service import GatewayService


def build_app(gateway: GatewayService) -> FastAPI:
    """All endpoints of one gateway."""
    app = FastAPI(title="Mobula", docs_url="/docs", redoc_url=None)
    app.add_middleware(CancelOnDisconnect, max_body_bytes=gateway.settings.max_body_bytes)
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(Exception, _on_unexpected)
    _add_inference(app, gateway)
    _add_operations(app, gateway)
    return app


def _add_inference(app: FastAPI, gateway: GatewayService) -> None:
    @app.post("/v1/chat/completions", openapi_extra=_json_body(ChatRequest))
    async def chat_completions(request: Request) -> Response:
        arrival = time.perf_counter()
        body = parse_body(await request.body(), request.headers.get("content-type", ""), ChatRequest)
        return await chat_completion(gateway, body, arrival)

    @app.post("/v1/completions", openapi_extra=_json_body(CompletionRequest))
    async def completions(request: Request) -> Response:
        arrival = time.perf_counter()
        body = parse_body(await request.body(), request.headers.get("content-type", ""), CompletionRequest)
        return await completion(gateway, body, arrival)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [_model_object(gateway, name) for name in gateway.models]}

    @app.get("/v1/models/{name:path}")
    async def one_model(name: str) -> dict[str, Any]:
        return _model_object(gateway, gateway.model(name).id)


def _add_operations(app: FastAPI, gateway: GatewayService) -> None:
    @app.get("/health")
    async def health() -> Response:
        """200 only if an engine of every model has just answered from its step loop."""
        for model in gateway.models.values():
            try:
                await model.port.check()
            except Exception as error:
                return JSONResponse(error_object(f"{model.id}: {error or type(error).__name__}", "server_error"), 503)
        return JSONResponse({"status": "ok"})

    @app.get("/ready")
    async def ready() -> Response:
        """200 once this gateway can take requests; with what it knows of the models' engines."""
        models = [
            {
                "id": model.id,
                "dtype": model.info.dtype,
                "max_model_len": model.info.max_model_len,
                "kv_blocks": model.info.num_blocks,
                "block_size": model.info.block_size,
                "start_seconds": dict(model.info.stages),
            }
            for model in gateway.models.values()
        ]
        return JSONResponse({"status": "ready", "models": models})

    @app.get("/metrics")
    async def metrics() -> Response:
        return PlainTextResponse(gateway.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _model_object(gateway: GatewayService, name: str) -> dict[str, Any]:
    model = gateway.models[name]
    return {
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "mobula",
        "max_model_len": model.info.max_model_len,
    }


def _json_body(model: type[Any]) -> dict[str, Any]:
    schema = model.model_json_schema()
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


async def _on_api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body, error.status, error.headers)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    words = {404: f"There is no {request.url.path[:200]} here.", 405: f"{request.method} is not allowed here."}
    message = words.get(error.status_code, str(error.detail))
    return JSONResponse(error_object(message, "invalid_request_error"), error.status_code, error.headers)


async def _on_unexpected(_: Request, error: Exception) -> Response:
    return JSONResponse(error_object("The server failed; try again.", "server_error"), 500)
