"""POST /v1/responses: chats as a list of items, stateless."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response

from cluster.gateway.adapted_chat import Adapted, adapted_job
from cluster.gateway.chat_parts import ChatFinishReason, portions
from cluster.gateway.chat_protocol import ChatRequest
from cluster.gateway.entrance import json_body, read_body
from cluster.gateway.errors import ApiError
from cluster.gateway.requests import Endpoint, Job
from cluster.gateway.responses_chat import chat_fields
from cluster.gateway.responses_items import EventLog, OutputItems
from cluster.gateway.responses_protocol import ResponsesRequest
from cluster.gateway.service import GatewayService
from cluster.gateway.sse import stream

RESPONSES = Endpoint(
    id_prefix="resp",
    object="response",
    chunk_object="response",
    prompt_field="input",
    default_max_tokens=None,
    continues_text=False,
)

NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
}

Object = dict[str, Any]


def add_responses(app: FastAPI, gateway: GatewayService) -> None:
    @app.post("/v1/responses", openapi_extra=json_body(ResponsesRequest))
    async def responses(request: Request) -> Response:
        arrival, caller = time.perf_counter(), request.state.caller
        body = await read_body(gateway, request, ResponsesRequest)
        adapted = Adapted(body.model, lambda _: chat_fields(body), NAMES)
        job = await adapted_job(gateway, RESPONSES, adapted, caller, arrival)
        answer = Answer(gateway, body, job)
        return await stream(answer.events()) if body.stream else JSONResponse(await answer.whole())


class Answer:
    """The one answer to a request, whole or as events."""

    def __init__(self, gateway: GatewayService, body: ResponsesRequest, job: Job[ChatRequest]) -> None:
        self._gateway = gateway
        self._body = body
        self._job = job
        self._log = EventLog()
        self._output = OutputItems(job.frame["id"], self._log.emit)

    async def whole(self) -> Object:
        """Raises ApiError."""
        reason = None
        async with aclosing(portions(self._job)) as merged:
            async for portion in merged:
                reason = self._take(portion.parts, portion.finish_reason)
        assert reason is not None
        return self._response() | await self._end(reason)

    async def events(self) -> AsyncGenerator[bytes]:
        """What fails before the first event is raised; afterwards it is told by the last event."""
        self._log.emit("created", response=self._response())
        self._log.emit("in_progress", response=self._response())
        has_begun = False
        try:
            async with aclosing(portions(self._job)) as merged:
                async for portion in merged:
                    reason = self._take(portion.parts, portion.finish_reason)
                    if reason is not None:
                        end = await self._end(reason)
                        self._log.emit(end["status"], response=self._response() | end)
                    if events := self._log.take():
                        yield events
                        has_begun = True
        except ApiError as error:
            if not has_begun:
                raise
            failure = {"code": "server_error", "message": error.body["error"]["message"]}
            self._log.emit("failed", response=self._response() | {"status": "failed", "error": failure})
            yield self._log.take()

    def _take(self, parts: list[Any], reason: ChatFinishReason | None) -> ChatFinishReason | None:
        for part in parts:
            self._output.write(part)
        if reason is not None:
            self._output.close(reason)
        return reason

    async def _end(self, reason: ChatFinishReason) -> Object:
        """What a finished response says that one in progress does not."""
        is_cut = reason == "length"
        return {
            "status": "incomplete" if is_cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "completed_at": None if is_cut else int(time.time()),
            "usage": await self._usage(),
        }

    async def _usage(self) -> Object:
        generation = self._job.generations[0]
        prompt, output = len(generation.request.token_ids), generation.text.num_tokens
        return {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": await generation.cached_tokens(), "cache_write_tokens": 0},
            "output_tokens": output,
            "output_tokens_details": {"reasoning_tokens": await self._reasoning_tokens()},
            "total_tokens": prompt + output,
        }

    async def _reasoning_tokens(self) -> int:
        """As the reasoning's text is tokenized by itself."""
        items = (item for item in self._output.items if item["type"] == "reasoning")
        text = "".join(part["text"] for item in items for part in item["content"])
        if not text:
            return 0
        encode = partial(self._job.model.tokenizer.encode, text, add_bos=False, parse_special=False)
        return len(await self._gateway.off_loop(encode))

    def _response(self) -> Object:
        """The response as it stands."""
        body = self._body
        form = (body.text.format if body.text is not None else None) or {"type": "text"}
        return {
            "id": self._job.frame["id"],
            "object": "response",
            "created_at": self._job.frame["created"],
            "status": "in_progress",
            "background": False,
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": self._job.model.id,
            "output": self._output.items,
            "parallel_tool_calls": body.parallel_tool_calls,
            "previous_response_id": None,
            "reasoning": {"effort": body.reasoning.effort if body.reasoning is not None else None, "summary": None},
            "service_tier": self._job.frame.get("service_tier", "default"),
            "store": False,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": {"format": form},
            "tool_choice": body.model_dump(include={"tool_choice"})["tool_choice"] or "auto",
            "tools": [tool.model_dump() for tool in body.tools or ()],
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": "disabled",
            "usage": None,
        }
