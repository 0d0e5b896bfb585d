"""POST /v1/messages and /v1/messages/count_tokens: chats in Anthropic's shape."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response

from cluster.gateway.adapted_chat import Adapted, adapted_job, count_prompt
from cluster.gateway.anthropic_answer import message_events, whole_message
from cluster.gateway.anthropic_chat import chat_fields
from cluster.gateway.anthropic_protocol import CountTokensRequest, MessagesRequest
from cluster.gateway.entrance import json_body, read_body
from cluster.gateway.errors import ANTHROPIC_PATH, ApiError, body_at
from cluster.gateway.requests import Endpoint
from cluster.gateway.service import GatewayService, ModelService
from cluster.gateway.sse import named_event, stream

MESSAGES = Endpoint(
    id_prefix="msg",
    object="message",
    chunk_object="message",
    prompt_field="messages",
    default_max_tokens=None,
    continues_text=False,
)

NAMES = {
    "stop": "stop_sequences",
    "thinking_token_budget": "thinking",
    "reasoning_effort": "thinking or output_config.effort",
    "response_format": "output_config.format",
    "parallel_tool_calls": "tool_choice",
}


def add_messages(app: FastAPI, gateway: GatewayService) -> None:
    @app.post("/v1/messages", openapi_extra=json_body(MessagesRequest))
    async def messages(request: Request) -> Response:
        return await _answer(gateway, request)

    @app.post("/v1/messages/count_tokens", openapi_extra=json_body(CountTokensRequest))
    async def count_tokens(request: Request) -> Response:
        return await _count(gateway, request)


async def _answer(gateway: GatewayService, request: Request) -> Response:
    """Raises ApiError before the first byte."""
    arrival, caller = time.perf_counter(), request.state.caller
    body = await read_body(gateway, request, MessagesRequest)
    job = await adapted_job(gateway, MESSAGES, _adapted(body), caller, arrival)
    if body.stream:
        return await stream(_events(message_events(job)))
    return JSONResponse(await whole_message(job))


async def _count(gateway: GatewayService, request: Request) -> Response:
    """Raises ApiError."""
    body = await read_body(gateway, request, CountTokensRequest)
    return JSONResponse({"input_tokens": await count_prompt(gateway, _adapted(body))})


def _adapted(body: CountTokensRequest) -> Adapted:
    def to_chat(model: ModelService) -> dict[str, Any]:
        return chat_fields(body, can_think=model.renderer.dialect_of(None).think_marks is not None)

    return Adapted(body.model, to_chat, NAMES)


async def _events(events: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """What fails before the first event is raised; afterwards it is the last event."""
    has_begun = False
    async with aclosing(events):
        try:
            async for chunk in events:
                yield chunk
                has_begun = True
        except ApiError as error:
            if not has_begun:
                raise
            yield named_event("error", body_at(ANTHROPIC_PATH, error))
